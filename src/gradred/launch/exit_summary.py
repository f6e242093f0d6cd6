"""The final messages of a job: the errors, with the first cause last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradred._util.text import ranks_text
from gradred.launch.job import Cause, Failure

_LONGEST_PROGRAM = 80


def failure_lines(failures: Sequence[Failure]) -> list[str]:
    """Return a line per place and cause; the first failure has a line of its own, the last one."""
    later: dict[tuple[str, Cause], list[int]] = {}
    for failure in failures[1:]:
        later.setdefault((_place(failure), failure.cause), []).append(failure.rank)
    lines = [
        f"{ranks_text(numbers)} {place} {cause.of(len(numbers))}"
        for (place, cause), numbers in reversed(later.items())
    ]
    return lines + [f"rank {one.rank} {_place(one)} {one.cause}" for one in failures[:1]]


def survived_lines(failures: Sequence[Failure]) -> list[str]:
    """Return a line for each failed rank that the others have continued without."""
    return [
        f"rank {one.rank} {_place(one)} {one.cause}; the others went on without it"
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


def _place(failure: Failure) -> str:
    """Return a rank's host, and its program if the job has several."""
    text = failure.program
    if len(text) > _LONGEST_PROGRAM:
        text = text[: _LONGEST_PROGRAM - 3] + "..."
    return f"on {failure.host} ({text})" if text else f"on {failure.host}"
