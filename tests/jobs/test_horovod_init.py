"""Programs of the Horovod front end that leave MPI to `init`, with sets of ranks from the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lean import LEAN

from gradred import launch

pytest.importorskip("torch")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

BY_RANKS = """
import mpi4py
mpi4py.rc.initialize = False
import os
import sys
import torch
import gradred.torch as hvd

rank, size = int(os.environ["RANK"]), 3
others = [2, 1] if rank == 0 else [1, 2]  # in any order
for sets in ([[0], others, [0, 1, 2]], [[0], others, [0]]):  # one has all ranks, one comes twice
    try:
        hvd.init(process_sets=[hvd.ProcessSet(ranks) for ranks in sets])
    except ValueError as error:
        assert "Give each set once" in str(error), error
    else:
        raise AssertionError(f"{sets} were taken")
alone, rest = hvd.ProcessSet([0]), hvd.ProcessSet(others)
hvd.init(process_sets=[alone, rest])
hvd.init(process_sets=[alone, rest])
assert (hvd.rank(), hvd.size()) == (rank, size)
assert (alone.process_set_id, rest.process_set_id) == (1, 2)
own = rest if rank else alone
total = hvd.allreduce(torch.ones(3) * (rank + 1), op=hvd.Sum, process_set=own)
assert total.tolist() == [5.0 if rank else 1.0] * 3, total
if "raises" in sys.argv:
    raise RuntimeError("on purpose")
"""

BY_COMMUNICATORS = """
import torch
from mpi4py import MPI
import gradred.torch as hvd

world = MPI.COMM_WORLD
half = world.Split(world.rank % 2, world.rank)
sets = [hvd.ProcessSet(half), hvd.ProcessSet([0, 2])]  # on even ranks the same
try:
    hvd.init(comm=world, process_sets=sets)
    assert world.rank == 1
except ValueError as error:
    assert world.rank != 1 and "Give each set once" in str(error), error
own = hvd.ProcessSet(half)
hvd.init(comm=world, process_sets=[own])
assert own.ranks == [1] if world.rank == 1 else [0, 2]
assert own.process_set_id == 1 + world.rank % 2
total = hvd.allreduce(torch.ones(3) * (world.rank + 1), op=hvd.Sum, process_set=own)
assert total.tolist() == [2.0 if world.rank == 1 else 4.0] * 3, total
"""

WITHOUT_INIT = """
import torch
import gradred.torch as hvd

net = torch.nn.Linear(2, 1)
x, plain, sets = torch.ones(4, 2), torch.optim.SGD(net.parameters(), 0.1), hvd.ProcessSet([0])


def wrap(**given):
    optimizer = hvd.DistributedOptimizer(plain, net.named_parameters(), **given)
    net(x).sum().backward()
    optimizer.step()


def iterate():
    list(hvd.elastic.ElasticSampler(range(4)))


surfaces = {
    "wrap": wrap,
    "groups": lambda: wrap(groups=1),
    "buckets": lambda: wrap(gradient_as_bucket_view=True),
    "adasum": lambda: wrap(op=hvd.Adasum),
    "compression": lambda: wrap(compression=hvd.Compression.fp16),
    "feedback": lambda: wrap(compression=hvd.Compression.int8()),
    "passes": lambda: wrap(backward_passes_per_step=2),
    "a set": lambda: wrap(process_set=sets),
    "batch norm": lambda: hvd.SyncBatchNorm(2)(x),
    "state": lambda: hvd.elastic.TorchState(net, plain, batch=0).sync(),
    "sampler": iterate,
    "parameters": lambda: hvd.broadcast_parameters(net.state_dict(), 0),
    "optimizer": lambda: hvd.broadcast_optimizer_state(plain, 0),
    "object": lambda: hvd.broadcast_object(1),
    "objects": lambda: hvd.allgather_object(1),
    "sparse": lambda: hvd.sparse_allreduce_async(x.to_sparse(), "s", hvd.Sum)(),
    "add": lambda: hvd.add_process_set([0]),
    "remove": lambda: hvd.remove_process_set(sets),
}
for name in ("allreduce", "allgather", "alltoall", "reducescatter"):
    surfaces[name] = lambda name=name: getattr(hvd, name)(x)
    surfaces[name + "_async"] = lambda name=name: getattr(hvd, name + "_async")(x)
for name in ("allreduce", "allgather", "reducescatter"):
    surfaces["grouped_" + name] = lambda name=name: getattr(hvd, "grouped_" + name)([x])
for name in ("broadcast", "broadcast_", "broadcast_async", "broadcast_async_"):
    surfaces[name] = lambda name=name: getattr(hvd, name)(x, 0)
for name in ("allreduce_", "allreduce_async_"):
    surfaces[name] = lambda name=name: getattr(hvd, name)(x)
for name in ("join", "barrier", "rank", "size", "local_rank", "local_size", "cross_rank",
             "cross_size", "mpi_threads_supported"):
    surfaces[name] = lambda name=name: getattr(hvd, name)()
surfaces["timeline"] = lambda: hvd.start_timeline("never")
for name, call in surfaces.items():
    try:
        call()
    except (ValueError, hvd.HorovodInternalError) as error:
        assert "has not been initialized" in str(error), (name, error)
    else:
        print("silent:", name)
"""

SETS_THAT_NOBODY_REGISTERED = """
import torch
from mpi4py import MPI
import gradred.torch as hvd

hvd.init()
net = torch.nn.Linear(2, 1)
plain = torch.optim.SGD(net.parameters(), 0.1)
for one in (hvd.ProcessSet(MPI.COMM_WORLD.Dup()), hvd.ProcessSet([0, 1])):
    try:
        hvd.DistributedOptimizer(plain, net.named_parameters(), process_set=one)
    except ValueError as error:
        assert "has not been registered" in str(error), error
    else:
        raise AssertionError(f"{one} was taken")
"""


def run(tmp_path: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(text)
    command = [sys.executable, "-m", "gradred", "run", "-np", "3"]
    command += [sys.executable, str(program), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=55, check=False, env=os.environ | LEAN
    )


def test_init_begins_mpi_and_ends_it(tmp_path: Path) -> None:
    done = run(tmp_path, BY_RANKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr


def test_a_program_that_raises_after_init_began_mpi_ends_the_job(tmp_path: Path) -> None:
    done = run(tmp_path, BY_RANKS, "raises")
    assert done.returncode == 1, done.stderr
    assert "on purpose" in done.stderr


def test_ranks_give_different_sets_by_communicators(tmp_path: Path) -> None:
    done = run(tmp_path, BY_COMMUNICATORS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_forgotten_init_is_an_error_everywhere(tmp_path: Path) -> None:
    """Ranks that reduce nothing would drift apart without a word."""
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_INIT)
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_a_set_that_was_not_registered_is_an_error_at_the_wrap(tmp_path: Path) -> None:
    done = run(tmp_path, SETS_THAT_NOBODY_REGISTERED)
    assert done.returncode == 0, done.stderr
