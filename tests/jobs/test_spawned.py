"""Processes that ranks spawn by MPI_Comm_spawn: `gradred run` ends them, or waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bounds import within

from gradred import launch
from gradred.launch import processes

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

PROGRAM = """
import os, sys, time
from mpi4py import MPI
role, folder, how = sys.argv[1:]
if role == "worker":
    parent = MPI.Comm.Get_parent()
    parent.Barrier()
    if how == "in order":
        parent.Disconnect()
    open(f"{folder}/{os.getpid()}", "w").close()
    while how != "in order":
        time.sleep(0.1)
    while not os.path.exists(f"{folder}/left"):
        time.sleep(0.05)
    time.sleep(6)  # longer than `gradred run` waits for an mpiexec that hangs
    print("worker is done", flush=True)
    MPI.Finalize()
    sys.exit(0)
workers = MPI.COMM_SELF.Spawn(sys.executable, [__file__, "worker", folder, how])
workers.Barrier()
if how == "in order":
    workers.Disconnect()
    print("rank leaves", flush=True)
    MPI.Finalize()
    open(f"{folder}/left", "w").close()
    sys.exit(0)
while len(os.listdir(folder)) < MPI.COMM_WORLD.size:
    time.sleep(0.05)
if how == "fails" and MPI.COMM_WORLD.rank == 1:
    os._exit(3)
if how == "killed" and MPI.COMM_WORLD.rank == 1:
    os.kill(os.getpid(), 9)
time.sleep(60)
"""


def start(folder: Path, how: str, ranks: int = 2) -> subprocess.Popen[str]:
    program, spawned = folder / "program.py", folder / "spawned"
    program.write_text(PROGRAM)
    spawned.mkdir()
    command = [sys.executable, "-m", "gradred", "run", "-np", str(ranks), "--grace", "1"]
    return subprocess.Popen(
        [*command, str(program), "rank", str(spawned), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def spawned(folder: Path, count: int = 2) -> list[processes.Process]:
    """The spawned processes, once they run."""
    deadline = time.monotonic() + 40
    while len(os.listdir(folder / "spawned")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pids = [int(name) for name in os.listdir(folder / "spawned")]
    return [process for pid in pids for process in processes.tree(pid)]


def assert_ended(members: list[processes.Process]) -> None:
    deadline = time.monotonic() + within(5)
    while any(member.alive() for member in members):
        assert time.monotonic() < deadline, members
        time.sleep(0.02)


@pytest.mark.parametrize("sent", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_spawned_processes_end_when_the_launcher_is_ended(sent: str, tmp_path: Path) -> None:
    job = start(tmp_path, "sleeps")
    members = spawned(tmp_path)
    began = time.monotonic()
    job.send_signal(getattr(signal, sent))
    number = getattr(signal, sent)
    job.communicate(timeout=30)
    assert job.returncode == (-number if sent == "SIGKILL" else 128 + number)
    assert time.monotonic() - began < within(4)  # mpiexec alone may take 5 s
    assert_ended(members)


@pytest.mark.parametrize(("how", "status"), [("fails", 3), ("killed", 137)])
def test_spawned_processes_end_with_a_job_that_failed(
    how: str, status: int, tmp_path: Path
) -> None:
    job = start(tmp_path, how)
    members = spawned(tmp_path)
    _, err = job.communicate(timeout=30)
    assert job.returncode == status
    assert "rank 1 on" in err.splitlines()[-1]
    assert_ended(members)


def test_spawned_processes_that_have_disconnected_finish_their_work(tmp_path: Path) -> None:
    job = start(tmp_path, "in order", ranks=1)
    members = spawned(tmp_path, 1)
    out, err = job.communicate(timeout=40)
    assert out.splitlines()[:2] == ["rank leaves", "worker is done"]
    assert (job.returncode, "did not end" in err) == (0, False)
    assert_ended(members)


def test_interrupt_ends_the_wait_for_spawned_processes(tmp_path: Path) -> None:
    job = start(tmp_path, "in order", ranks=1)
    members = spawned(tmp_path, 1)
    for member in members:
        os.kill(member.pid, signal.SIGSTOP)
    assert job.stdout is not None
    assert job.stdout.readline() == "rank leaves\n"
    time.sleep(0.5)
    assert job.poll() is None
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=30)
    assert job.returncode == 130
    assert_ended(members)
