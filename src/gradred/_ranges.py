"""Numbers in words: `0-2, 5` instead of a list."""

from __future__ import annotations

import itertools
from collections.abc import Iterable


def ranges(numbers: Iterable[int]) -> str:
    """`0-2, 5, 6` of 0, 1, 2, 5 and 6."""
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def ranks_text(numbers: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`."""
    ordered = sorted(numbers)
    return f"rank{'' if len(ordered) == 1 else 's'} {ranges(ordered)}"
