"""What ranks of torch.distributed see that train with one that dies, stands still, or differs."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from faults import seeing

from gradred import launch

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

PROGRAM = pathlib.Path(__file__).with_name("torch_failing.py")
TORCH = torch.torch_version.TorchVersion(torch.__version__)


@pytest.mark.parametrize("what", ["ddp", "fsdp2", "functional"])
@pytest.mark.parametrize(
    ("how", "ranks", "text", "within"),
    [
        ("killed", {0}, "rank 1", 2.0),
        ("sleeps", {0}, "which has not been submitted by rank 1", 3.0),
        ("differs", {0, 1}, "Mismatched", 2.0),
    ],
)
def test_others_get_an_error_in_time(
    what: str, how: str, ranks: set[int], text: str, within: float
) -> None:
    if what == "fsdp2" and TORCH < (2, 6):
        pytest.skip("torch is older than 2.6, whose FSDP2 wants a GPU")
    command = [sys.executable, "-m", "gradred", "run", "-np", "2", "--grace", "5"]
    command += [sys.executable, str(PROGRAM), what, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    reports = seeing.reports_in(done.stdout.splitlines())
    assert reports.keys() == ranks, done.stdout + done.stderr
    for found in reports.values():
        assert found["error"] is not None, reports
        assert text in found["text"], reports
        assert found["seconds"] < within, reports
