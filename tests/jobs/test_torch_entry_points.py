"""Programs of torch.distributed find the backend by the entry points of the installed package."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gradred import launch

torch = pytest.importorskip("torch")

VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

REDUCES = """
import torch
import torch.distributed as dist

dist.init_process_group("gradred", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
print(dist.get_backend(), x.tolist())
dist.destroy_process_group()
"""


def printed(program: str, autoload: str) -> str:
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("autoload", "since"), [("1", (2, 5)), ("0", (2, 14))], ids=["at import", "when named"]
)
def test_backend_is_known_without_an_import(autoload: str, since: tuple[int, int]) -> None:
    if since > VERSION:
        pytest.skip(f"PyTorch has this entry point from {'.'.join(map(str, since))} on")
    assert printed(REDUCES, autoload) == "gradred [1.0, 1.0, 1.0]\n"


def test_import_makes_the_backend_known_to_every_pytorch() -> None:
    program = "import gradred.torch\n" + REDUCES
    assert printed(program, "0") == "gradred [1.0, 1.0, 1.0]\n"
