"""Clients of torch.distributed on several hosts, with their own launchers."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from hosts.jobs import NETWORK, PATHS, why_not
from hosts.machines import HEAD, Machines
from hosts.test_without_mpiexec import agents, needs_pmi

pytest.importorskip("torch")
pytest.importorskip("accelerate")

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

ACCELERATED = """
import os, socket
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
rank, size = accelerator.process_index, accelerator.num_processes
weight = torch.nn.Parameter(torch.zeros(3))
model = torch.nn.ParameterList([weight])
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = weight
    def forward(self, x):
        return (self.weight * x).sum()
model, optimizer = accelerator.prepare(Net(), torch.optim.SGD([weight], lr=1.0))
accelerator.backward(model(torch.tensor(rank + 1.0)))
optimizer.step()
assert weight.tolist() == [-(size + 1) / 2] * 3, weight
backend = torch.distributed.get_backend()
os.write(1, f"rank {rank} of {size} on {socket.gethostname()} by {backend} is right\\n".encode())
accelerator.end_training()
"""


def test_accelerate_launch_on_two_hosts(tmp_path: Path) -> None:
    """On CPUs Accelerate starts ranks of several machines by mpirun alone."""
    (tmp_path / "program.py").write_text(ACCELERATED)
    (tmp_path / "machines").write_text("h1\nh2\n")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_machines", "2"]
    command += ["--num_processes", "4", "--mpirun_hostfile", str(tmp_path / "machines")]
    command += ["--main_process_ip", "10.91.7.1", "--main_process_port", "29506"]
    command += ["--mixed_precision", "no", str(tmp_path / "program.py")]
    with Machines(2) as hosts:
        environment = {**os.environ, **NETWORK, "PYTHONPATH": PATHS, "GRADRED_TORCH": "1"}
        beside = str(Path(sys.executable).parent)  # mpirun, as in an activated environment
        environment["PATH"] = os.pathsep.join([hosts.path, beside, environment["PATH"]])
        process = hosts.start(HEAD, command, environment, tmp_path)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    for host in ("h1", "h2"):
        assert len(re.findall(rf"rank \d of 4 on {host} by gradred is right", out)) == 2, (out, err)


@needs_pmi
def test_transformer_of_the_example_generates_the_same_text_on_two_hosts(tmp_path: Path) -> None:
    with Machines(2) as hosts:
        done = agents(hosts, tmp_path, [str(EXAMPLES / "tensor_parallel.py")], "c10d", 29507)
    assert [status for *_, status in done] == [0, 0], done
    assert "4 ranks generate the same as the whole model: 3 141 59" in done[0][0] + done[1][0]
    for host, (out, *_) in zip(("h1", "h2"), done, strict=True):
        kept = re.findall(rf"rank \d on {host} keeps (\d+) of (\d+) weights", out)
        assert len(kept) == 2, done
        assert all(int(part) < 0.3 * int(whole) for part, whole in kept), kept
