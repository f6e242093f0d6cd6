"""What a waiting rank reports, and which rank reports it, where no other test checks this."""

from __future__ import annotations

import pathlib
import re

import pytest
from faults import seeing

from gradred import launch

pytestmark = [
    pytest.mark.one_mpi,
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


@pytest.fixture(params=["shared memory", "messages"])
def knobs(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings for the ranks' shared memory, or for messages."""
    return {} if request.param == "shared memory" else {"GRADRED_SHM": "0"}


def reports_in(seen: seeing.Seen) -> list[str]:
    """Reports of ranks that waited in a call, in the order of their output."""
    waits = re.compile(r"has waited [\d.]+ s in (operation|the first call|Dup|a non-blocking call)")
    return [line for line in seen.stderr.splitlines() if waits.search(line)]


WAITS_IN_THE_MPI = """
import json, sys, time
import numpy as np
import stepped
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
    reports = [line for line in seen.stderr.splitlines() if "in flight for " in line]
    assert len(reports) >= 1, seen
    assert all("(allreduce of 4 float64" in line for line in reports), seen
    assert all("rank 1 (process" in line for line in reports), seen
    ends = [line for line in seen.stderr.splitlines() if "own Wait or Test ends with" in line]
    assert len(ends) == 2, seen
    assert all("PeerLost: " in line and "left the program" in line for line in ends), seen
    assert seen.reports.keys() == {0, 2}, seen
    for report in seen.reports.values():
        assert report["seconds"] > 2, "nobody knows that the MPI waits, so there is no time limit"


FIRST_CALL = """
import json, sys, time
import numpy as np
import stepped
from mpi4py import MPI
import gradred

gradred.Comm(MPI.COMM_WORLD).Allreduce(MPI.IN_PLACE, np.zeros(1))
comm = gradred.Comm(MPI.COMM_WORLD.Dup())
if comm.rank == 1:
    stepped.let_pass(0.6, ranks=comm.size - 1)
    time.sleep(1)
    stepped.let_pass(2, ranks=comm.size - 1)
    stepped.await_end_of_others()
    sys.exit(7)
try:
    if sys.argv[1] == "Dup":
        comm.Dup()
    elif sys.argv[1] == "blocking":
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    else:
        comm.Iallreduce(MPI.IN_PLACE, np.zeros(1)).Wait()
except gradred.TimeoutError as error:
    print(json.dumps({"rank": comm.rank, "text": str(error)}), flush=True)
"""


@pytest.mark.parametrize("call", ["blocking", "non-blocking", "Dup"])
def test_wait_in_a_first_call_is_reported_once_per_host(call: str, tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FIRST_CALL)
    seen = seeing.job(program, call, GRADRED_WARN_AFTER="0.5", GRADRED_TIMEOUT="2")
    reports = [line for line in reports_in(seen) if "missing: rank 1 (process " in line]
    assert {line.partition(" has")[0] for line in reports} == {"gradred: rank 0"}, seen
    named = reports[-1].partition("missing: ")[2]
    assert named.count("rank ") == 1, "the others wait, and show it"
    assert "nothing is known" not in named, seen
    assert seen.reports.keys() >= {0, 2, 3}, seen


SPLIT = """
import json, os, signal, sys, time
import numpy as np
import stepped
from mpi4py import MPI
import gradred

world = MPI.COMM_WORLD
comm = gradred.Comm(world).Split(world.rank % 2)
comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
if world.rank == 3:
    stepped.let_pass(0.6, ranks=1)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
if world.rank == 1:
    try:
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    except gradred.PeerLost as error:
        print(json.dumps({"rank": world.rank, "text": str(error)}), flush=True)
"""


def test_ranks_are_named_by_their_numbers_in_comm_world_too(
    knobs: dict[str, str], tmp_path: pathlib.Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPLIT)
    seen = seeing.job(program, GRADRED_WARN_AFTER="0.5", GRADRED_TIMEOUT="10", **knobs)
    reports = reports_in(seen)
    reporters = {line.partition(" has")[0] for line in reports}
    assert reporters == {"gradred: rank 0 (COMM_WORLD rank 1)"}, seen
    assert "rank 1 (COMM_WORLD rank 3, process " in reports[0]
    assert "rank 1 (COMM_WORLD rank 3, process " in seen.reports[1]["text"], seen
    assert "of this host" not in seen.reports[1]["text"]


NEVER_MET = """
import json, sys, time
import numpy as np
import stepped
from mpi4py import MPI
import gradred

comm = gradred.Comm(MPI.COMM_WORLD)
if comm.rank == 2:
    stepped.let_pass(1.2, ranks=2)
    time.sleep(0.5)
    stepped.let_pass(1.2, ranks=2, of=2)
    time.sleep(0.5)
    sys.exit(7)
try:
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
except gradred.PeerLost as error:
    print(json.dumps({"rank": comm.rank, "text": str(error)}), flush=True)
"""


def test_ranks_that_have_never_met_are_found_and_named(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(NEVER_MET)
    seen = seeing.job(program, ranks=3, GRADRED_WARN_AFTER="2", GRADRED_TIMEOUT="20")
    report = reports_in(seen)[-1]
    assert report.partition("; ")[2].startswith("missing: rank 2 (process "), seen
    assert report.count("rank ") == 2, "who reports, and who is missing"
    assert "nothing is known" not in report, seen
    assert seen.reports.keys() == {0, 1}, seen
