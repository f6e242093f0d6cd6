"""`gradred simulate record`: programs that it records, and such that it cannot record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(300)  # imports PyTorch in several processes

PROGRAM = """
import sys
import torch

torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.Linear(512, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    x, y = torch.randn(32, 64), torch.randint(0, 4, (32,))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print("end of the program")
"""


def record(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "gradred", "simulate", "record", *words]
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Output and trace of two processes at the same time."""
    folder = tmp_path_factory.mktemp("recorded")
    words = ["--iterations", "4", "--copies", "2", "--", sys.executable, "train.py", "100000"]
    done = record(folder, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "trace.json").read_text())


def test_gradients_have_their_sizes_in_the_order_of_backward(
    recorded: tuple[str, dict[str, Any]],
) -> None:
    _, trace = recorded
    sizes = {one["name"]: one["elements"] for one in trace["gradients"]}
    assert sizes == {
        **{"3.weight": 2048, "3.bias": 4, "2.weight": 512 * 512, "2.bias": 512},
        **{"0.weight": 64 * 512, "0.bias": 512},
    }
    assert [name[0] for name in sizes] == list("332200")
    assert trace["batch"] == "32x64"
    # Which layer takes longest is not tested: busy cores decide that in four iterations.
    for phase in ("forward_s", "backward_s"):
        by_layer = {
            layer: sum(one[phase] for one in trace["gradients"] if one["name"][0] == layer)
            for layer in "023"
        }
        assert min(by_layer.values()) > 0


def test_phases_are_about_an_iteration_and_processes_ran_beside_each_other(
    recorded: tuple[str, dict[str, Any]],
) -> None:
    out, trace = recorded
    assert [len(own) for own in trace["iterations_s"]] == [4, 4]
    assert out.startswith("# measured: train.py 100000, batch 32x64, cpu, 2 at the same time")
    assert "end of the program" not in out
    phases = sum(one["forward_s"] + one["backward_s"] for one in trace["gradients"])
    assert phases > 0
    assert trace["update_s"] > 0
    assert trace["load_s"] > 0
    assert 0 < trace["copy_s_per_byte"] < 1e-7, "slower than 10 MB/s"


def test_a_program_with_buckets_is_recorded_as_one_rank(tmp_path: Path) -> None:
    begin, end = PROGRAM.split("optimizer = ")
    start = 'torch.distributed.init_process_group("gloo")\n'
    wrapped = "model = torch.nn.parallel.DistributedDataParallel(model)\n"
    (tmp_path / "ddp.py").write_text(f"{begin}{start}{wrapped}optimizer = {end}")
    words = ["--iterations", "4", "--copies", "2", "--", sys.executable, "ddp.py", "100000"]
    done = record(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "DistributedDataParallel's own work is part of backward" in done.stdout
    found = json.loads((tmp_path / "trace.json").read_text())
    assert found["packs"]
    assert [one["name"] for one in found["gradients"]][-1] in ("module.0.weight", "module.0.bias")
    assert len(found["iterations_s"]) == 2


def test_a_program_that_fails_is_to_be_run_alone(tmp_path: Path) -> None:
    done = record(tmp_path, "--", sys.executable, "missing.py")
    assert done.returncode == 1
    assert "process 0 ended with status 1 and without a trace" in done.stderr
    assert "Run it without gradred, and correct what fails" in done.stderr


def test_a_program_without_steps_is_refused(tmp_path: Path) -> None:
    done = record(tmp_path, "--", sys.executable, "train.py", "3")
    assert done.returncode == 1
    assert "process 0 ended with status 0 and without a trace" in done.stderr
    assert "Let it call an optimizer's step()" in done.stderr
    assert "end of the program" in done.stdout
