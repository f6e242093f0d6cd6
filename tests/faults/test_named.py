"""A rank that ends or stops responding while others wait for it in named operations."""

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

PROGRAM = pathlib.Path(__file__).with_name("named.py")


@pytest.mark.parametrize(
    ("how", "error", "text", "within"),
    [
        ("killed,small", "PeerLost", "rank 1", 2.0),
        ("killed,large", "PeerLost", "rank 1", 2.0),
        ("raises,small", "PeerLost", "rank 1 has left", 2.0),
        ("leaves,large", "PeerLost", "rank 1 has left", 2.0),
        ("never_submits,small", "TimeoutError", "has not been submitted by rank 1", 3.0),
    ],
)
def test_all_others_get_the_same_error_in_time(
    how: str, error: str, text: str, within: float
) -> None:
    seen = seeing.job(PROGRAM, how)
    assert seen.reports.keys() == {0, 2, 3}, seen
    for report in seen.reports.values():
        assert report["error"] == error, seen
        assert report["seconds"] < bounds.within(within), seen
        assert report["later"] == error, seen
        assert report["later_seconds"] < bounds.within(1), seen
    assert any(text in report["text"] for report in seen.reports.values()), seen
