"""Ctrl-C in a call, as Python's own handler raises KeyboardInterrupt for it."""

from __future__ import annotations

from pathlib import Path

import bounds
import pytest
from faults.seeing import job

PROGRAM = Path(__file__).with_name("interrupted.py")
knobs = {"shared memory": {}, "messages": {"GRADRED_SHM": "0"}}


@pytest.mark.parametrize(
    ("count", "path"), [("1", "shared memory"), ("100000", "shared memory"), ("1", "messages")]
)
def test_communicator_stays_usable_if_the_peers_come_soon(count: str, path: str) -> None:
    seen = job(PROGRAM, "soon", count, ranks=2, GRADRED_TIMEOUT="20", **knobs[path])
    assert seen.reports.keys() == {0, 1}, seen
    for report in seen.reports.values():
        assert report["kept"] == report["counted"] > 0, seen


@pytest.mark.parametrize("path", knobs)
@pytest.mark.parametrize("count", ["1", "100000"])
def test_call_whose_peers_do_not_come_ends_within_a_tenth_of_a_second(
    count: str, path: str
) -> None:
    seen = job(PROGRAM, "never", count, ranks=2, GRADRED_TIMEOUT="20", **knobs[path])
    assert seen.reports[0]["error"] == "KeyboardInterrupt", seen
    assert 0 < seen.reports[0]["seconds"] < bounds.within(0.1), seen
    assert "a rank left the call by Ctrl-C" in seen.reports[1]["error"], seen


def test_ctrl_c_in_a_persistent_operation_leaves_its_communicator_usable() -> None:
    seen = job(PROGRAM, "persistent", "3", ranks=2, GRADRED_TIMEOUT="20")
    assert seen.reports.keys() == {0, 1}, seen
    for report in seen.reports.values():
        assert report["error"].startswith("the persistent operation failed"), seen
        assert "a rank left the call by Ctrl-C" in report["error"], seen
        assert "make a new one by Allreduce_init" in report["error"], seen
        assert report["sum"] == [2.0] * 3, seen
