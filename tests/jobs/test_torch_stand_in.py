"""GRADRED_TORCH=1: groups that a program requests from gloo or from torch's "mpi" are gradred's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lean import LEAN

from gradred import launch

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks")

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

backend = None if sys.argv[1] == "none" else sys.argv[1]
if sys.argv[1] == "mesh":
    group = init_device_mesh("cpu", (2,)).get_group()
else:
    dist.init_process_group(backend)
    group = dist.group.WORLD
other = dist.new_group([0, 1], backend="mpi" if backend == "MPI" else "gloo")
for one in (group, other):
    x = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(x, group=one)
    assert x.eq(3).all(), x
    print(dist.get_backend(one), one._get_backend(torch.device("cpu")).name(), flush=True)
dist.monitored_barrier(other)
objects = [None, None]
dist.all_gather_object(objects, {"rank": dist.get_rank()}, group=group)
assert objects == [{"rank": 0}, {"rank": 1}], objects
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3), process_group=group)
model(torch.ones(1, 3)).sum().backward()
dist.destroy_process_group()
"""
SAYS = "gradred: GRADRED_TORCH=1"


def run(
    tmp_path: Path, word: str, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "gradred", "run", *options, "-np", "2"]
    command += [sys.executable, str(program), word]
    environment = os.environ | LEAN | variables
    return subprocess.run(
        command, capture_output=True, text=True, timeout=55, check=False, env=environment
    )


@pytest.mark.parametrize("word", ["gloo", "none", "cpu:gloo", "mesh", "MPI"])
def test_groups_requested_from_gloo_are_gradreds(tmp_path: Path, word: str) -> None:
    done = run(tmp_path, word, "--torch")
    assert done.returncode == 0, done.stderr
    found = [line.split()[-2:] for line in done.stdout.splitlines()]
    assert [name for _, name in found] == ["gradred"] * 4
    assert {backend for backend, _ in found} <= {"gradred", "cpu:gradred"}
    assert done.stderr.count(SAYS) == 1, done.stderr


def test_variable_does_the_same_as_the_option(tmp_path: Path) -> None:
    done = run(tmp_path, "gloo", GRADRED_TORCH="1")
    assert done.stdout.count("gradred gradred") == 4, done.stderr


def test_without_it_gloo_serves(tmp_path: Path) -> None:
    done = run(tmp_path, "gloo", GRADRED_TORCH="0")
    assert done.stdout.count("gloo gloo") == 4, done.stderr
    assert SAYS not in done.stderr


def test_ranks_of_torchrun_take_it_from_the_variable(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, str(program), "gloo"],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        env=os.environ | LEAN | {"GRADRED_TORCH": "1"},
    )
    assert done.stdout.count("gradred") == 8, done.stderr  # the ranks' lines may be mixed


FOR_MPI = """
import torch
import torch.distributed as dist

dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.full((3,), rank + 1.0)
dist.all_reduce(x)
assert x.eq(size * (size + 1) / 2).all(), x
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
net(torch.ones(2, 3)).sum().backward()
dist.barrier(group=dist.new_group(list(range(size))))
print(f"rank {rank} of {size} by {dist.get_backend()}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("start", ["mpiexec", "torchrun", "alone"])
def test_programs_for_torchs_backend_mpi_say_no_address(tmp_path: Path, start: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(FOR_MPI)
    command = [sys.executable, str(program)]
    if start == "mpiexec":
        command = [*launch.launcher_command(launch.find_mpi(), 2), *command]
    elif start == "torchrun":
        words = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
        command = [sys.executable, *words, str(program)]
    environment = launch.job_environment(launch.find_mpi()) | LEAN | {"GRADRED_TORCH": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=55, check=False, env=environment
    )
    size = 1 if start == "alone" else 2
    assert done.returncode == 0, done.stderr
    for rank in range(size):
        assert f"rank {rank} of {size} by gradred" in done.stdout
