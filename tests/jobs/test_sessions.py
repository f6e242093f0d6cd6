"""Programs of MPI sessions: gradred serves their communicators beside MPI.Init()."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradred import launch

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

PROGRAM = """
import mpi4py

mpi4py.rc.initialize = False
import numpy as np
from mpi4py import MPI

import gradred

try:
    session = MPI.Session.Init()
except NotImplementedError:
    print("says that this MPI has no sessions", flush=True)
    MPI.Init()
    raise SystemExit from None
group = MPI.Group.Create_from_session_pset(session, "mpi://WORLD")
made = MPI.Intracomm.Create_from_group(group, "org.example.sums")
x, y = np.arange(5000.0), np.empty(5000)
for refused in (
    lambda: gradred.Comm(made),
    lambda: gradred.allreduce(x, comm=made),
    lambda: gradred.Comm.Create_from_group(group, "org.example.others"),
):
    try:
        refused()
    except gradred.UsageError as error:
        assert "Programs of MPI sessions call it too" in str(error), error
    else:
        raise AssertionError("the MPI's world does not exist yet")

MPI.Init()  # as the error says
comm = gradred.Comm(made)
comm.Allreduce(x, y)
assert (y == 2 * x).all()
request = comm.Iallreduce(x, y)
request.Wait()
assert (y == 2 * x).all()
parts = [comm.Dup(), comm.Split(0, -comm.rank), gradred.Comm(made)]
for part in parts:
    part.Allreduce(MPI.IN_PLACE, y)
assert (y == 16 * x).all()
assert (gradred.allreduce(x, comm=comm) == 2 * x).all()
others = gradred.Comm.Create_from_group(group, "org.example.others")
assert (gradred.allreduce(x, comm=others) == 2 * x).all()
print("says", gradred.Comm(MPI.COMM_WORLD).allreduce(1), flush=True)
for part in (*parts[:2], others, comm):
    part.Free()
group.Free()
session.Finalize()
MPI.Finalize()
"""


def test_sessions_are_served_once_mpi_is_initialised_as_well(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "gradred", "run", "-np", "2", sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "says that this MPI has no sessions" in done.stdout:
        pytest.skip("this MPI has no sessions")
    assert done.stdout.count("says 2") == 2
