"""Ranks with properties that MPI allows to differ: thread levels, free communicators and others."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gradred import launch

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

BEGIN = """
    import os, sys
    import numpy as np
    import mpi4py

    RANK = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "-1")))
"""

CALLS = """
    from mpi4py import MPI
    import gradred
    from gradred import _core

    comm = gradred.Comm(MPI.COMM_WORLD)
    other = gradred.Comm(MPI.COMM_WORLD.Dup())
    size = comm.size

    def check(comm, count, op, dtype="float32"):
        x, y = np.full(count, comm.rank + 1, dtype), np.empty(count, dtype)
        requests = [comm.Iallreduce(x, y, op)]
        z = np.full(count, comm.rank + 1, dtype)
        requests.append(comm.Iallreduce(MPI.IN_PLACE, z, op))
        for request in requests:
            request.Wait()
        total = size * (size + 1) / 2
        expected = total / size if op == "avg" else total
        assert (y == np.asarray(expected, dtype)).all(), (count, op, y[:3])
        assert (z == y).all(), (count, op, z[:3])

    def check_truth(comm):
        x, y = np.array([True, comm.rank == 0, False]), np.zeros(3, bool)
        odd = size % 2 == 1
        cases = [(MPI.MIN, True, False), (MPI.BXOR, odd, True)]
        cases += [(MPI.LOR, True, True), ("min", True, False)]
        for op, all_true, one_true in cases:
            comm.Iallreduce(x, y, op).Wait()
            assert y.tolist() == [all_true, one_true, False], (op, y)
            persistent = comm.Allreduce_init(x, z := np.zeros(3, bool), op)
            persistent()
            assert (z == y).all()

    def check_all(comm):
        for count in (1, 700, 300_000):
            check(comm, count, MPI.SUM)
            check(comm, count, "avg")
            check(comm, count, MPI.SUM, "float16")
        check_truth(comm)
        block = np.empty(5)
        comm.Ireduce_scatter_block(np.ones(5 * size), block).Wait()
        assert (block == size).all()
        y = np.empty(3)
        persistent = comm.Allreduce_init(np.ones(3), y)
        persistent()
        persistent.Start()
        persistent.Wait()
        persistent.Free()
        assert (y == size).all()

    check_all(comm)  # first calls that do not block; Allreduce_init is the first that may
    other.Allreduce(MPI.IN_PLACE, np.zeros(1))
    check_all(other)
    if RANK == 1:  # which holds for communicators made from now on
        gradred.config.set("progress_thread", os.environ.get("GRADRED_PROGRESS_THREAD") == "0")
        gradred.Comm(MPI.COMM_SELF)
    check_all(comm)
    print("right", flush=True)
"""


def run(tmp_path: Path, ranks: int, *parts: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text("".join(textwrap.dedent(part) for part in parts))
    command = [sys.executable, "-m", "gradred", "run", "-np", str(ranks), "--timeout", "60"]
    return subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=100)


def assert_right(done: subprocess.CompletedProcess[str], ranks: int) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == ranks, (done.stdout, done.stderr)


@pytest.mark.parametrize("level", ["single", "serialized"])
def test_ranks_of_different_thread_levels(level: str, tmp_path: Path) -> None:
    choose = f'mpi4py.rc.thread_level = "{level}" if RANK == 1 else "multiple"\n'
    assert_right(run(tmp_path, 3, BEGIN, choose, CALLS), 3)


def test_ranks_of_which_some_have_no_progress_thread(tmp_path: Path) -> None:
    choose = 'os.environ["GRADRED_PROGRESS_THREAD"] = "0" if RANK == 0 else "1"\n'
    assert_right(run(tmp_path, 3, BEGIN, choose, CALLS), 3)


EXHAUSTED = """
    from mpi4py import MPI

    made = [MPI.COMM_WORLD.Dup() for _ in range(4)]
    taken = []
    if RANK in {who}:  # MPICH has 2,046 communicators in all, Open MPI some ten thousand
        try:
            while len(taken) < 3000:
                taken.append(MPI.COMM_SELF.Dup())
        except MPI.Exception:
            pass
    ran_out = len(taken) < 3000
    import gradred

    for one in (MPI.COMM_WORLD, MPI.COMM_SELF, *made):
        one.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    for turn, one in enumerate(made):
        comm = gradred.Comm(one)
        size = comm.size
        first = np.full(1000, comm.rank + 1, "float32")
        if turn % 2:
            comm.Iallreduce(MPI.IN_PLACE, first).Wait()
        else:
            comm.Allreduce(MPI.IN_PLACE, first)
        assert (first == size * (size + 1) // 2).all()
        for count in (1, 1000, 1 << 20):
            for dtype in ("float32", "float16"):
                x, y = np.ones(count, dtype), np.empty(count, dtype)
                comm.Allreduce(x, y)
                assert (y == size).all()
                comm.Iallreduce(x, y, "avg").Wait()
                assert (y == 1).all()
        # A rank that waits in shared memory still drives the MPI.
        message = np.full(8 << 20, comm.rank, np.uint8)
        if comm.rank == 0:
            request = MPI.COMM_WORLD.Isend(message, dest=1)
            comm.Allreduce(x, y)
            request.Wait()
        else:
            if comm.rank == 1:
                MPI.COMM_WORLD.Recv(message, source=0)
            comm.Allreduce(x, y)
        assert one.Get_errhandler() == MPI.ERRORS_ARE_FATAL
    if ran_out:
        print("ran out")
    print("right", flush=True)
"""


@pytest.mark.parametrize(
    ("who", "threads"), [("(0,)", "1"), ("(1,)", "0 on one"), ("(0, 1, 2)", "1")]
)
def test_ranks_of_which_some_have_no_communicators_left(
    who: str, threads: str, tmp_path: Path
) -> None:
    choose = 'os.environ["GRADRED_PROGRESS_THREAD"] = "0" if RANK == 2 else "1"\n'
    unequal = [choose] if threads != "1" else []
    done = run(tmp_path, 3, BEGIN, *unequal, EXHAUSTED.replace("{who}", who))
    assert_right(done, 3)
    if launch.find_mpi().family == "MPICH":
        assert "ran out" in done.stdout
