"""Programs of torch that no MPI starts: torchrun, torch.multiprocessing."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from bounds import within

from gradred import launch

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
STATIC = [sys.executable, "-m", "torch.distributed.run"]
TORCHRUN = [*STATIC, "--standalone"]

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.full)])
def test_everything_of_a_process_group(ranks: int) -> None:
    folder = ROOT / "tests" / "pytorch"
    tests = [
        *map(str, sorted(folder.glob("test_distributed*.py"))),
        str(folder / "test_parallel.py"),
    ]
    words = [f"--nproc-per-node={ranks}", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = run(*TORCHRUN, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\d\d+ passed", done.stdout)) == ranks, done.stdout


# Rank 1 ends in the middle of the first two attempts, which it counts. Agents of torchrun count the
# failures that they have seen.
ENDS_TWICE = r"""
import os, pathlib, signal, sys
import torch
import torch.distributed as dist
import gradred.torch

ends, saved = (pathlib.Path(sys.argv[1], name) for name in ("ends", "steps"))
dist.init_process_group("gradred")
attempt = len(ends.read_text()) if ends.exists() else 0
begin = int(saved.read_text()) if saved.exists() else 0
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 5))
for step in range(begin, 6):
    model(torch.ones(1, 5)).sum().backward()
    dist.barrier()
    if dist.get_rank() == 0:
        saved.write_text(str(step + 1))
    dist.barrier()
    if dist.get_rank() == 1 and step == 2 * attempt + 1 and attempt < 2:
        ends.write_text("." * (attempt + 1))
        if sys.argv[2] == "raise":
            raise ValueError("on purpose")
        if sys.argv[2] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(3)
x = torch.ones(3)
dist.all_reduce(x)
os.write(1, f"attempt {attempt} began at {begin} {x.tolist()}\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["exit", "raise", "kill"])
@pytest.mark.parametrize("rendezvous", [[], ["--standalone"]], ids=["static", "c10d"])
def test_workers_that_torchrun_starts_anew_train_on(
    tmp_path: Path, how: str, rendezvous: list[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(ENDS_TWICE)
    where = rendezvous or ["--master-port", str(unused_port())]
    words = [*STATIC, *where, "--nproc-per-node", "2", "--max-restarts", "2", str(program)]
    done = run(*words, str(tmp_path), how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(TRAINED_ON) == 2, done.stdout


TRAINED_ON = "attempt 2 began at 4 [2.0, 2.0, 2.0]"


def unused_port() -> int:
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        return int(unused.getsockname()[1])


@pytest.mark.parametrize("how", ["exit", pytest.param("kill", marks=pytest.mark.full)])
@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_they_do_where_each_has_an_agent_of_its_own(
    tmp_path: Path, how: str, rendezvous: str
) -> None:
    """As on two hosts: one of c10d's agents may count a failure, and the other none."""
    program = tmp_path / "program.py"
    program.write_text(ENDS_TWICE)
    port = unused_port()
    where = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    if rendezvous == "c10d":
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        where += ["--rdzv-id", "job", "--local-addr", "127.0.0.1"]
    agents = []
    for agent in range(2):
        words = [*STATIC, *where, "--nnodes", "2", "--node-rank", str(agent)]
        words += ["--nproc-per-node", "1", "--max-restarts", "3", str(program), str(tmp_path), how]
        output = (tmp_path / f"output of {agent}").open("w")
        agents.append(subprocess.Popen(words, stdout=output, stderr=output))
        output.close()
    try:
        ended = [agent.wait(100) for agent in agents]
    finally:
        for process in agents:
            process.terminate()  # this ends its worker, too
            process.wait(20)
    said = "".join((tmp_path / f"output of {agent}").read_text() for agent in range(2))
    assert ended == [0, 0], said
    assert said.count(TRAINED_ON) == 2, said


# Stages of a pipeline end one after the other.
STAGES = r"""
import os, time
import torch
import torch.distributed as dist
import gradred.torch

dist.init_process_group("gradred")
rank, x = dist.get_rank(), torch.zeros(3)
if rank > 0:
    dist.recv(x, rank - 1)
if rank == 1:
    time.sleep(2.5)
if rank < 2:
    dist.send(x + 1, rank + 1)
os.write(1, f"stage {rank} got {x.tolist()}\n".encode())
os._exit(0)
"""


def test_a_message_may_come_after_another_rank_has_ended(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(STAGES)
    done = run(*TORCHRUN, "--nproc-per-node", "3", str(program))
    assert done.returncode == 0, done.stderr
    assert "stage 2 got [2.0, 2.0, 2.0]" in done.stdout


@pytest.mark.parametrize("example", ["ddp.py", pytest.param("fsdp.py", marks=pytest.mark.full)])
def test_examples_learn(example: str) -> None:
    done = run(*TORCHRUN, "--nproc-per-node=2", str(ROOT / "examples" / example))
    assert done.returncode == 0, done.stderr
    found = [float(right) for right in re.findall(r"([\d.]+) % of the test", done.stdout)]
    assert found[-1] > 85, done.stdout


RAISES = """
import torch
import torch.distributed as dist

dist.init_process_group("gradred")
dist.all_reduce(torch.ones(3))
if dist.get_rank() == 1:
    raise ValueError("boom")
dist.all_reduce(torch.ones(3))
"""


def test_the_rank_that_raises_is_the_cause_and_the_others_tell_its_error(tmp_path: Path) -> None:
    program = tmp_path / "raises.py"
    program.write_text(RAISES)
    done = run(*TORCHRUN, "--nproc-per-node=2", str(program))
    assert done.returncode != 0
    assert "rank 1 has left the program: ValueError: boom" in done.stderr, done.stderr
    cause = done.stderr[done.stderr.index("Root Cause") :]
    assert re.search(r"rank +: 1 ", cause), done.stderr


SUMS = """
import torch
import torch.distributed as dist

dist.init_process_group("gradred")
for _ in range(20):
    dist.all_reduce(torch.ones(1000))
alone = dist.new_group([1])
if dist.get_rank() == 1:
    dist.barrier(alone)
dist.destroy_process_group()
"""


def test_profile_and_trace_are_of_all_ranks(tmp_path: Path) -> None:
    program = tmp_path / "sums.py"
    program.write_text(SUMS)
    wanted = {"GRADRED_PROFILE": f"{tmp_path}/p.json", "GRADRED_TRACE": f"{tmp_path}/t.json"}
    done = run(*TORCHRUN, "--nproc-per-node=2", str(program), **wanted)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gradred profile of rank 0 of 2") == 1, done.stderr
    assert "gradred profile of rank 1" not in done.stderr
    for rank in range(2):
        profile = json.loads((tmp_path / f"p.{rank}.json").read_text())
        assert (profile["rank"], profile["size"]) == (rank, 2)
        sums = [row for row in profile["rows"] if row["kind"] == "allreduce"]
        assert sum(row["calls"] for row in sums) >= 1, profile
        assert sum(row["bytes"] for row in sums) == 20 * 4000, profile
        events = json.loads((tmp_path / f"t.{rank}.json").read_text())["traceEvents"]
        assert any(event["ph"] == "X" for event in events)


LATE = """
import datetime
import time

import torch.distributed as dist

dist.init_process_group("gradred")
dist.monitored_barrier()
if dist.get_rank() == 0:
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=1), wait_all_ranks=True)
    except RuntimeError as error:
        print(type(error).__name__, error)
time.sleep(2 if dist.get_rank() else 0)
dist.barrier()  # the group goes on
print("went on")
dist.destroy_process_group()
"""


def test_monitored_barrier_names_all_that_are_late(tmp_path: Path) -> None:
    program = tmp_path / "late.py"
    program.write_text(LATE)
    done = run(*TORCHRUN, "--nproc-per-node=3", str(program))
    assert done.returncode == 0, done.stderr
    expected = (
        "TimeoutError monitored_barrier: Ranks 1, 2 failed to pass monitoredBarrier in 1000 ms"
    )
    assert expected in done.stdout, done.stdout
    assert done.stdout.count("went on") == 3, done.stdout


def test_groups_of_some_ranks_have_the_numbers_of_the_program(tmp_path: Path) -> None:
    program = tmp_path / "groups.py"
    program.write_text(
        SUMS.replace('"gradred"', '"gloo"')
        .replace("[1]", "[1, 2], backend='gradred'")
        .replace("get_rank() == 1", "get_rank() > 0")
    )
    done = run(*(*TORCHRUN, "--nproc-per-node=3", str(program)), GRADRED_TRACE=f"{tmp_path}/t.json")
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in tmp_path.glob("t.*")) == ["t.1.json", "t.2.json"]


AGAIN = """
import datetime

import torch
import torch.distributed as dist

for members in ([0], [0, 1], [1], [0, 1]):  # by the same name, of other ranks each time
    dist.init_process_group("gradred", timeout=datetime.timedelta(seconds=20))
    some = dist.new_group(members)
    if dist.get_rank() in members:
        ones = torch.ones(4)
        dist.all_reduce(ones, group=some)
        assert ones.tolist() == [len(members)] * 4
    dist.destroy_process_group()
print("all of them")
"""


def test_torch_is_initialised_again_with_groups_of_other_ranks(tmp_path: Path) -> None:
    program = tmp_path / "again.py"
    program.write_text(AGAIN)
    done = run(*TORCHRUN, "--nproc-per-node=2", str(program))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all of them") == 2, done.stdout


SPAWN = """
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, store):
    dist.init_process_group("gradred", init_method="file://" + store, rank=rank, world_size=2)
    x = torch.full((1000,), rank + 1.0)
    dist.all_reduce(x)
    began = "mpi4py.MPI" in sys.modules and sys.modules["mpi4py.MPI"].Is_initialized()
    sys.stdout.write(f"sum {x[0]:.0f} of rank {rank}, MPI {began}\\n")  # in one piece
    if rank == 1:
        return
    begin = time.monotonic()
    try:
        dist.all_reduce(x)
    except Exception as error:
        print(f"{type(error).__name__} after {time.monotonic() - begin:.2f} s: {error}")


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


def test_processes_that_torch_spawns_need_no_mpi_and_see_a_rank_end(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPAWN)
    done = run(sys.executable, str(program), str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    sums = sorted(line for line in done.stdout.splitlines() if line.startswith("sum"))
    assert sums == [f"sum 3 of rank {rank}, MPI False" for rank in (0, 1)]
    ended = re.search(r"^(\w+) after ([\d.]+) s: (.*rank 1.*)", done.stdout, re.MULTILINE)
    assert ended is not None, done.stdout + done.stderr
    assert float(ended[2]) < within(5)


WITH_MPI = """
import torch
import torch.distributed as dist
from mpi4py import MPI

assert MPI.COMM_WORLD.Get_size() == 1
dist.init_process_group("gradred")
for rank in range(2):
    alone = dist.new_group([rank])
    if rank == dist.get_rank():
        dist.all_reduce(torch.ones(1), group=alone)
x = torch.ones(1)
dist.all_reduce(x)
print(f"sum {x.item():.0f}")
"""


def test_groups_of_one_rank_where_the_program_has_begun_an_mpi_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WITH_MPI)
    done = run(*TORCHRUN, "--nproc-per-node=2", str(program))
    assert done.stdout.count("sum 2") == 2, done.stdout + done.stderr


def test_without_shared_memory_they_connect_by_mpi_if_it_needs_no_mpiexec(tmp_path: Path) -> None:
    program = tmp_path / "sums.py"
    program.write_text(SUMS)
    done = run(*TORCHRUN, "--nproc-per-node=2", str(program), GRADRED_SHM="0")
    if launch.find_mpi().family != "Open MPI":
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode != 0
    assert "share no memory (GRADRED_SHM is off)" in done.stderr
    assert "gradred run" in done.stderr


def test_calls_that_take_the_mpi_get_an_error_that_says_how_to_start(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import gradred, numpy\ngradred.allreduce(numpy.ones(3))\n")
    done = run(*TORCHRUN, "--nproc-per-node=2", str(program))
    assert done.returncode != 0
    assert "torchrun started them" in done.stderr
    assert re.search(rf"gradred run -np 2 \S+ (-u )?{program}", done.stderr), done.stderr
