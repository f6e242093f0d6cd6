"""What a rank that waits says of it, and who says it, where other tests do not look."""

from __future__ import annotations

import pathlib

import pytest
from faults import seeing

from gradred import launch

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


@pytest.fixture(params=["shared memory", "messages"])
def knobs(request: pytest.FixtureRequest) -> dict[str, str]:
    """The ranks' memory, or messages."""
    return {} if request.param == "shared memory" else {"GRADRED_SHM": "0"}


WAITS_IN_THE_MPI = """
import json, sys, time
import numpy as np
from mpi4py import MPI
import gradred

comm = gradred.Comm(MPI.COMM_WORLD)
comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
if comm.rank == 1:
    time.sleep(2.5)
    sys.exit(7)
begin = time.monotonic()
try:
    MPI.Request.Waitall([comm.Iallreduce(np.ones(4), np.ones(4))])
except MPI.Exception:
    seconds = time.monotonic() - begin
    print(json.dumps({"rank": comm.rank, "seconds": seconds}), flush=True)
"""


def test_wait_of_the_mpi_is_reported_and_ends_with_the_reason(
    knobs: dict[str, str], tmp_path: pathlib.Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(WAITS_IN_THE_MPI)
    seen = seeing.job(program, ranks=3, GRADRED_WARN_AFTER="0.5", **knobs)
    told = [line for line in seen.stderr.splitlines() if "in flight for 0.5 s" in line]
    assert len(told) >= 1, seen
    assert all("(allreduce of 4 float64" in line for line in told), seen
    assert all("rank 1 (process" in line for line in told), seen
    ends = [line for line in seen.stderr.splitlines() if "own Wait or Test ends with" in line]
    assert len(ends) == 2, seen
    assert all("PeerLost: " in line and "left the program" in line for line in ends), seen
    assert seen.reports.keys() == {0, 2}, seen
    for report in seen.reports.values():
        assert report["seconds"] > 2, "nobody knows that the MPI waits, so there is no time limit"
