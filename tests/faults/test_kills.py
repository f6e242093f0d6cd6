"""Kills from outside: this process ends a rank of a job with SIGKILL at a random microsecond.

By default there is one kill for each of a few activities of the ranks. The full sweep has several
kills for each activity. Moments are random in each run, and a failure prints its own.
"""

from __future__ import annotations

import pathlib
import random

import bounds
import pytest
from faults import killing, seeing
from faults.killing import DOINGS, ON_SHARED_MEMORY, RANKS, Kill

from gradred import launch

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

KILLS_OF_FULL_SWEEP = 5
OFTEN = [  # activities of the small sweep; each costs some seconds
    ("large", "shared memory"),
    ("large_non_blocking", "messages"),
    ("first_call", "shared memory"),
    ("duplicates", "messages"),
    ("communicators", "shared memory"),
    ("going_on", "shared memory"),
    ("finalize", "shared memory"),
]
CASES = [
    pytest.param(doing, path, marks=() if (doing, path) in OFTEN else pytest.mark.full)
    for doing in DOINGS
    for path in ("shared memory", "messages")
    if path == "shared memory" or doing not in ON_SHARED_MEMORY
]


@pytest.mark.parametrize(("doing", "path"), CASES)
def test_kill_from_outside_is_known_to_all_others_within_two_seconds_and_leaves_nothing(
    doing: str, path: str, full: bool, tmp_path: pathlib.Path
) -> None:
    in_mpich = 0
    number = 0
    while number < (KILLS_OF_FULL_SWEEP if full else 1) + in_mpich:
        folder = tmp_path / str(number)
        folder.mkdir()
        kill = killing.lose_a_rank(doing, path, random.Random(), folder)
        killing.record(kill)
        if kill.in_mpich and in_mpich == 0:
            in_mpich += 1  # known (docs/errors.md) and rare; repeat the kill once
            check_end(kill)
        else:
            check(kill)
        (folder / "result").unlink()
        number += 1


def went_on(kill: Kill) -> bool:
    """Whether the others have a communicator without the victim. Then the job succeeds."""
    texts = {one.get("text") for one in kill.survivors.values()}
    return kill.doing == "going_on" or texts == {"not in the shrunk communicator"}


def check_end(kill: Kill) -> None:
    """Check the job's messages, that it ended in time and that nothing is left."""
    assert kill.inside, "what the victim was doing"
    assert f"rank {kill.victim} " in kill.seen.stderr, kill
    assert "was killed by SIGKILL" in kill.seen.stderr, kill
    assert kill.seen.status == (0 if went_on(kill) else 128 + 9), kill
    assert kill.mapped, kill
    assert not kill.left, kill
    if kill.doing == "finalize" or kill.in_mpich:
        assert kill.over_s < 2 + seeing.GRACE, kill


def check(kill: Kill) -> None:
    others = set(range(RANKS)) - {kill.victim}
    check_end(kill)
    assert kill.survivors.keys() == others, kill
    assert "did not end within" not in kill.seen.stderr, kill
    if kill.doing == "finalize":
        return
    for report in kill.survivors.values():
        assert report["seconds"] < bounds.within(2), kill
        if kill.doing == "going_on":
            assert report["members"] == sorted(others), kill
        else:
            assert report["error"] == "PeerLost", kill
