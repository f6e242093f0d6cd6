"""A worker or a server that is killed while others train under a scheme."""

from __future__ import annotations

import pathlib

import bounds
import pytest
from faults import seeing

from gradred import launch
from gradred.schemes import SCHEMES

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

PROGRAM = pathlib.Path(__file__).with_name("schemes.py")
RANKS = 4
WORKER, SERVER = 1, 3  # the last rank is the server, if there is one
CASES = [
    pytest.param(scheme, transport, victim, id=f"{scheme}-{transport}-{who}")
    for scheme, row in SCHEMES.items()
    for transport in ("mpi", "tcp")
    for who, victim in (("worker", WORKER), ("server", SERVER))
    if row.servers or who == "worker"
]


@pytest.mark.parametrize(("scheme", "transport", "victim"), CASES)
def test_all_others_get_peer_lost_in_time(scheme: str, transport: str, victim: int) -> None:
    seen = seeing.job(PROGRAM, scheme, transport, str(victim), ranks=RANKS, GRADRED_TIMEOUT="30")
    assert seen.reports.keys() == {*range(RANKS)}, seen
    killed = seen.reports.pop(victim)["at"]
    for report in seen.reports.values():
        assert report["error"] == "PeerLost", seen
        assert report["at"] - killed < bounds.within(2.0), seen
    assert seen.status == 137, seen
