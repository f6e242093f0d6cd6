"""Which rank the others wait for: from two states of a profile, a minute apart."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Any, NamedTuple

WINDOW = 60.0  # seconds
_LAST = 0.9  # a straggler was the last rank in so many of the operations
_COSTS = 0.1  # and cost such a share of the time
_FEWEST = 10  # sampled operations
_SAYS_AGAIN = 600.0  # seconds


class _State(NamedTuple):
    at: float
    rows: dict[tuple[Any, ...], dict[str, Any]]


class Stragglers:
    """Find ranks that come late, in profiles that are given one after another.

    Arrivals are known where ranks share memory. A rank is late by how much later than the median of
    the others it comes.
    """

    def __init__(self) -> None:
        """Begin without a profile."""
        self._states: deque[_State] = deque()
        self._said: dict[int, float] = {}

    def shares(self, profile: dict[str, Any], now: float) -> dict[int, float]:
        """Return the stragglers, and the share of the time that each has cost the others.

        Args:
            profile: as `_core.profile_json` returns it.
            now: seconds, as of `clock.now`.
        """
        rows = {
            (row["kind"], row["op"], row["dtype"], row["mode"], row["max_bytes"]): row
            for row in profile["rows"]
            if row["skew"]
        }
        self._states.append(_State(now, rows))
        while len(self._states) > 2 and now - self._states[1].at >= WINDOW:
            self._states.popleft()
        first = self._states[0]
        if now - first.at < WINDOW:
            return {}
        return _between(first.rows, rows, now - first.at)

    def news(self, shares: dict[int, float], now: float) -> list[str]:
        """Return a line for each straggler that was not named in the last ten minutes."""
        lines = []
        for rank, share in shares.items():
            if now - self._said.get(rank, -_SAYS_AGAIN) < _SAYS_AGAIN:
                continue
            self._said[rank] = now
            lines.append(
                f"rank {rank} was the last to come to at least {_LAST:.0%} of the operations of "
                f"the last minute, for which the others waited {share:.0%} of the time"
            )
        return lines


def _between(
    before: dict[tuple[Any, ...], dict[str, Any]],
    after: dict[tuple[Any, ...], dict[str, Any]],
    seconds: float,
) -> dict[int, float]:
    samples, made, last, lost = 0, 0, dict[int, float](), dict[int, float]()
    for key, row in after.items():
        old = before.get(key)
        looks = row["skew"]["samples"] - (old["skew"]["samples"] if old else 0)
        if not looks:
            continue
        calls = row["calls"] - (old["calls"] if old else 0)
        late = _late(row)
        was = _late(old) if old else {}
        came = {rank: (at - was.get(rank, (0.0, 0))[0]) / looks for rank, (at, _) in late.items()}
        samples += looks
        each = calls / looks  # short operations are looked at once in many
        made += calls
        for rank, (_, times) in late.items():
            others = [at for other, at in came.items() if other != rank]
            behind = came[rank] - statistics.median(others) if others else 0.0
            last[rank] = last.get(rank, 0.0) + (times - was.get(rank, (0.0, 0))[1]) * each
            lost[rank] = lost.get(rank, 0.0) + max(behind, 0.0) * calls
    if samples < _FEWEST:
        return {}
    return {
        rank: lost[rank] / seconds
        for rank, times in last.items()
        if times >= _LAST * made and lost[rank] > _COSTS * seconds
    }


def _late(row: dict[str, Any]) -> dict[int, tuple[float, int]]:
    """Return how late each rank came, in seconds in all, and how often it was the last."""
    skew = row["skew"]
    return {
        one["rank"]: (one["mean_late_s"] * skew["samples"], one["last"]) for one in skew["ranks"]
    }
