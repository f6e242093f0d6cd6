"""Errors that appear only after many operations or communicators: leaks, races, overflows."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gradred import launch

pytestmark = [
    pytest.mark.timeout(1000),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


def run(tmp_path: Path, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    command = [sys.executable, "-m", "gradred", "run", "-np", "2", sys.executable, str(path)]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=980
    )


@pytest.mark.parametrize("operations", [4_000, pytest.param(100_000, marks=pytest.mark.full)])
def test_two_threads_make_many_operations_on_two_communicators(
    tmp_path: Path, operations: int
) -> None:
    program = """
        import sys, threading
        import numpy as np
        from mpi4py import MPI
        import gradred

        TIMES = int(sys.argv[1])
        assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
        errors = []

        def work(comm, count):
            try:
                x, y = np.zeros(count, "int64"), np.zeros(count, "int64")
                for turn in range(TIMES):
                    x[:] = turn + comm.rank
                    comm.Allreduce(x, y)
                    assert y[-1] == 2 * turn + 1, (turn, y)
            except BaseException as error:
                errors.append(error)

        comms = [gradred.Comm(MPI.COMM_WORLD.Dup()) for _ in range(2)]
        for comm in comms:
            comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
        threads = [threading.Thread(target=work, args=(comm, n)) for comm, n in zip(comms, (1, 99))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
    """
    done = run(tmp_path, program, operations // 2)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("times", [1600, pytest.param(10_000, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "call",
    [
        "comm.Allreduce(x, y)",
        "comm.Iallreduce(x, y).Wait()",
        "comm.Iallreduce(x, y).Wait(); comm.Allreduce(x, y)",
    ],
)
def test_communicators_made_and_freed_leave_nothing(tmp_path: Path, call: str, times: int) -> None:
    """Descriptors, shared memory, memory and the MPI's handles, which would run out at 2,046."""
    program = """
        import ctypes, os, sys
        import numpy as np
        from mpi4py import MPI
        import gradred

        class Heap(ctypes.Structure):
            names = "arena ordblks smblks hblks hblkhd usmblks fsmblks used free keepcost"
            _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

        libc = ctypes.CDLL(None)
        libc.mallinfo2.restype = Heap

        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        def mappings():
            with open("/proc/self/maps") as file:
                return sum("/memfd:" in line or "/dev/shm/" in line for line in file)

        def memory():
            return libc.mallinfo2().used

        x, y = np.ones(3), np.empty(3)
        before, times = None, int(sys.argv[1])
        used = []  # by turn; some of it is freed a moment later, and the MPI's grows at first
        for turn in range(times):
            comm = gradred.Comm(MPI.COMM_WORLD.Dup())
            CALL
            assert y[0] == 2
            comm.Free()
            used.append(memory())
            if turn == 199:
                before = descriptors(), mappings()
        assert descriptors() == before[0], (before, descriptors())
        assert mappings() == before[1], (before, mappings())
        grown = (min(used[-200:]) - min(used[400:600])) / (times - 600)
        assert grown < 300, f"{grown} bytes more for each communicator"
    """
    done = run(tmp_path, program.replace("CALL", call), times)
    assert done.returncode == 0, done.stderr
