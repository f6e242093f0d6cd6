"""A call on which the ranks disagree, or that one refuses, where a peer never comes to it.

Over messages the ranks that know of the error wait until all ranks do, so that no message of the
call is left.
"""

from __future__ import annotations

import pathlib

import bounds
import pytest
from faults import seeing

from gradred import launch

pytestmark = [
    pytest.mark.one_mpi,
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

PROGRAM = """
import json, os, signal, sys, time
import numpy as np
import stepped
from mpi4py import MPI
import gradred
from gradred._util import clock

fault, mistake = sys.argv[1:]
comm = gradred.Comm(MPI.COMM_WORLD)
comm.Allreduce(MPI.IN_PLACE, np.ones(4))
if comm.rank == comm.size - 1:
    time.sleep(0.5)
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exits":
        sys.exit(7)
    stepped.let_pass(2, ranks=2)
    stepped.await_end_of_others()
    os._exit(7)
x = np.ones(1000 + (comm.rank if mistake == "disagree" else 0))
x.flags.writeable = comm.rank != 0 or mistake == "disagree"
begin = clock.now()
errors = []
while len(errors) < 2 and all(issubclass(one, gradred.UsageError) for one in errors):
    try:
        comm.Allreduce(MPI.IN_PLACE, x)
    except gradred.Error as error:
        errors.append(type(error))
        text = str(error)
    x.flags.writeable = True
    if mistake == "refuses and ends":
        time.sleep(1)
        break
found = {"rank": comm.rank, "error": errors[-1].__name__, "text": text}
print(json.dumps(found | {"seconds": clock.now() - begin}), flush=True)
sys.exit(3)
"""


def job(folder: pathlib.Path, *arguments: str, ranks: int = 3, timeout: str = "20") -> seeing.Seen:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    variables = {"GRADRED_SHM": "0", "GRADRED_TIMEOUT": timeout}
    return seeing.job(program, *arguments, ranks=ranks, **variables)


@pytest.mark.parametrize("mistake", ["disagree", "refuses"])
@pytest.mark.parametrize(("fault", "status"), [("killed", 137), ("exits", 7)])
def test_peer_that_ends_is_lost_to_ranks_that_wait_with_an_error(
    fault: str, status: int, mistake: str, tmp_path: pathlib.Path
) -> None:
    seen = job(tmp_path, fault, mistake)
    assert seen.reports.keys() == {0, 1}, seen
    for found in seen.reports.values():
        assert found["error"] == "PeerLost", seen
        assert found["seconds"] < bounds.within(0.5 + 2.0), seen
    assert seen.status == status, seen
    name = {"killed": "SIGKILL", "exits": "sys.exit(7)"}[fault]
    others = {"disagree": "the others disagree", "refuses": "another refuses its arguments"}[
        mistake
    ]
    seeing.record(f"{name} while {others}", "small", "messages", seen)


def test_timeout_says_what_the_ranks_disagree_about(tmp_path: pathlib.Path) -> None:
    seen = job(tmp_path, "never comes", "disagree", timeout="1")
    assert seen.reports.keys() == {0, 1}, seen
    for found in seen.reports.values():
        assert found["error"] == "TimeoutError", seen
        assert found["seconds"] < bounds.within(1 + 2), seen
        assert "the ranks disagree about a collective call" in found["text"], seen
        assert "no message from: rank 2" in found["text"], seen


def test_rank_that_refuses_and_ends_does_not_wait_for_the_dead(tmp_path: pathlib.Path) -> None:
    seen = job(tmp_path, "killed", "refuses and ends", ranks=2)
    assert seen.reports[0]["error"] == "UsageBufferError", seen
    assert "did not end within" not in seen.stderr, seen
    assert seen.status == 137, seen
