"""The final messages of a job: the errors, with the first cause last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradred._util.text import ranks_text
from gradred.launch.job import Cause, Failure


def failure_lines(failures: Sequence[Failure]) -> list[str]:
    """Return a line per host and cause; the first failure has a line of its own, the last one."""
    later: dict[tuple[str, Cause], list[int]] = {}
    for failure in failures[1:]:
        later.setdefault((failure.host, failure.cause), []).append(failure.rank)
    lines = [
        f"{ranks_text(numbers)} on {host} {cause.of(len(numbers))}"
        for (host, cause), numbers in reversed(later.items())
    ]
    return lines + [f"rank {one.rank} on {one.host} {one.cause}" for one in failures[:1]]


def survived_lines(failures: Sequence[Failure]) -> list[str]:
    """Return a line for each failed rank that the others have continued without."""
    return [
        f"rank {one.rank} on {one.host} {one.cause}; the others went on without it"
        for one in failures
    ]


def silent_lines(silent: Mapping[str, Sequence[int]], known: Sequence[Failure]) -> list[str]:
    """Return a line for each host whose ranks could not be ended, except those in `known`."""
    named = {failure.rank for failure in known}
    left = {host: [rank for rank in ranks if rank not in named] for host, ranks in silent.items()}
    return [
        f"{ranks_text(ranks)} on {host} cannot be reached any more"
        for host, ranks in left.items()
        if ranks
    ]
