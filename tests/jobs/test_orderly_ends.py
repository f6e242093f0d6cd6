"""Ends with status 0: ranks that leave on SIGTERM, and one that ends before it initialises MPI."""

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

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]
HOST = os.uname().nodename
RANK = "int(os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK'])"


def start(program: str, folder: Path, *words: str, ranks: int = 2) -> subprocess.Popen[str]:
    path = folder / "program.py"
    path.write_text(program)
    options = ["-np", str(ranks), "--grace", "2", "--timeout", "40"]
    return subprocess.Popen(
        [sys.executable, "-m", "gradred", "run", *options, str(path), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def finish(job: subprocess.Popen[str]) -> tuple[list[str], list[str], int]:
    out, err = job.communicate(timeout=50)
    return out.splitlines(), err.splitlines(), job.returncode


SAVES = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
import gradred
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
signal.signal(signal.SIGINT, lambda *_: stop.append(1))
comm = gradred.Comm(MPI.COMM_WORLD)
x = np.zeros(1)
if comm.rank == 0:
    print("trains", flush=True)
while not x[0]:
    x[0] = len(stop)
    comm.Allreduce(MPI.IN_PLACE, x, op=MPI.MAX)
    time.sleep(0.01)
print("saved", flush=True)
sys.exit(int(sys.argv[1]) if comm.rank == 1 else 0)
"""


@pytest.mark.parametrize(
    ("sent", "of_one", "status", "line"),
    [
        ("SIGTERM", 0, 0, "interrupted by SIGTERM; all ranks ended with status 0"),
        ("SIGTERM", 3, 143, "interrupted by SIGTERM"),
        ("SIGINT", 0, 130, "interrupted by SIGINT"),
    ],
)
def test_sigterm_is_no_failure_if_all_ranks_leave_in_order(
    sent: str, of_one: int, status: int, line: str, tmp_path: Path
) -> None:
    job = start(SAVES, tmp_path, str(of_one))
    assert job.stdout is not None
    assert job.stdout.readline() == "trains\n"
    job.send_signal(getattr(signal, sent))
    out, err, found = finish(job)
    assert (out, found) == (["saved", "saved"], status), err
    assert err[-1] == f"gradred run: {line}"


def test_rank_that_sigterm_kills_has_not_left_in_order(tmp_path: Path) -> None:
    job = start("import time; print('up', flush=True); time.sleep(60)", tmp_path)
    assert job.stdout is not None
    assert job.stdout.readline() + job.stdout.readline() == "up\nup\n"
    job.send_signal(signal.SIGTERM)
    assert finish(job)[2] == 143


BEFORE = f"""
import os, sys, time
rank = {RANK}
early, late = map(float, sys.argv[1:])
if rank == 1:
    time.sleep(early)
    sys.exit(0)
time.sleep(late)
from mpi4py import MPI
print("never", flush=True)
"""


@pytest.mark.parametrize(("early", "late"), [(0, 1), (1.5, 0)], ids=["first", "later"])
def test_rank_that_ends_before_mpi_init_ends_the_job(
    early: float, late: float, tmp_path: Path
) -> None:
    began = time.monotonic()
    out, err, status = finish(start(BEFORE, tmp_path, str(early), str(late), ranks=3))
    assert (out, status) == ([], 1), err
    assert time.monotonic() - began < within(15)
    if launch.find_mpi().family == "Open MPI":  # its mpiexec finds out, and says more before that
        line = "rank 1 ended with status 0 without MPI_Init or MPI_Finalize; others waited for it"
    else:
        line = f"rank 1 on {HOST} ended with status 0 before MPI_Init, in which others wait"
    assert err[-1] == f"gradred run: {line}"


WITHOUT = f"""
import os, sys, time
if {RANK} == 1:
    sys.exit(0)
time.sleep(4)
print("worked", flush=True)
"""
GOES_ON = """
import os, sys, time
import numpy as np
from mpi4py import MPI
import gradred
gradred.allreduce(np.ones(3))
if MPI.COMM_WORLD.rank == 1:
    os._exit(0)
time.sleep(4)
print("worked", flush=True)
os._exit(0)
"""
FINALIZED = """
import sys, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
rank = MPI.COMM_WORLD.rank
MPI.Finalize()
if rank == 1:
    sys.exit(0)
time.sleep(4)
print("worked", flush=True)
"""


@pytest.mark.parametrize(
    "program", [WITHOUT, GOES_ON, FINALIZED], ids=["no MPI", "gradred", "finalised"]
)
def test_rank_for_which_none_waits_in_mpi_init_may_end(program: str, tmp_path: Path) -> None:
    out, err, status = finish(start(program, tmp_path))
    assert (out, status) == (["worked"], 0), err
