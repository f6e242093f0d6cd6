"""Clients of torch.distributed on several hosts, with their own launchers."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from hosts.jobs import NETWORK, PATHS, why_not
from hosts.machines import HEAD, Machines
from hosts.test_without_mpiexec import finished, needs_pmi, start, start_agents

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
@pytest.mark.timeout(600)
def test_transformer_of_the_example_generates_the_same_text_on_two_hosts(tmp_path: Path) -> None:
    with Machines(2) as hosts:
        words = [str(EXAMPLES / "tensor_parallel.py")]
        done = finished(start_agents(hosts, tmp_path, words, "c10d", 29507), seconds=400)
    assert [status for *_, status in done] == [0, 0], done
    assert "4 ranks generate the same as the whole model: 3 141 59" in done[0][0] + done[1][0]
    for host, (out, *_) in zip(("h1", "h2"), done, strict=True):
        kept = re.findall(rf"rank \d on {host} keeps (\d+) of (\d+) weights", out)
        assert len(kept) == 2, done
        assert all(int(part) < 0.3 * int(whole) for part, whole in kept), kept


RAY = """
import pathlib, socket, sys
import ray, ray.train.torch
import torch
from ray.train.torch import TorchConfig, TorchTrainer

def train(folder):
    model = ray.train.torch.prepare_model(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rank, before = torch.distributed.get_rank(), model.module.bias.item()
    model(torch.ones(4, 3)).sum().mul(rank).backward()
    optimizer.step()
    moved = round(before - model.module.bias.item(), 3)  # 4 rows times the mean rank
    backend = torch.distributed.get_backend()
    text = f"on {socket.gethostname()} by {backend} moved {moved}"
    (pathlib.Path(folder) / f"rank{rank}").write_text(text)

ray.init(address="10.91.7.1:6379")
TorchTrainer(
    train,
    train_loop_config=sys.argv[1],
    scaling_config=ray.train.ScalingConfig(num_workers=4),
    torch_config=TorchConfig(backend="gradred"),
    run_config=ray.train.RunConfig(storage_path=sys.argv[1]),
).fit()
"""
RAY_NODES = {
    "h1": "--head --port=6379 --node-ip-address=10.91.7.1 --temp-dir=/mnt/ray",
    "h2": "--address=10.91.7.1:6379 --node-ip-address=10.91.7.2",
}
RAY_START = """
mount -t tmpfs tmpfs /mnt  # the hosts have the same files, and Ray keeps sockets in its folder
exec "$0" -m ray.scripts.scripts start --num-cpus=2 --object-store-memory=80000000 \\
  --disable-usage-stats "$@" >"$LOG" 2>&1
"""


@needs_pmi
@pytest.mark.timeout(600)
def test_ray_train_on_two_hosts(tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="takes ray[train]", exc_type=ImportError)
    (tmp_path / "program.py").write_text(RAY)
    settings = {"RAY_AUTH_MODE": "disabled"}
    with Machines(2) as hosts:
        for host, words in RAY_NODES.items():
            node = ["sh", "-c", RAY_START, sys.executable, *words.split()]
            log = tmp_path / f"{host}.log"
            environment = {
                **os.environ,
                **NETWORK,
                **settings,
                "PYTHONPATH": PATHS,
                "LOG": str(log),
            }
            status = hosts.start(host, node, environment, tmp_path).wait(timeout=100)
            assert status == 0, log.read_text()
        program = [str(tmp_path / "program.py"), str(tmp_path)]
        process = start(hosts, "h1", tmp_path, program, **settings)
        _, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    found = sorted((tmp_path / f"rank{rank}").read_text() for rank in range(4))
    by_host = [f"on {host} by gradred moved 6.0" for host in ("h1", "h2")]
    assert found == sorted(by_host * 2)
