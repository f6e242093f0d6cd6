"""Text for people: `0-2, 5` instead of a list of numbers, and lines as wide as the terminal."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Iterable

_LEAST = 40  # columns: a narrower terminal breaks lines itself


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


def width() -> int | None:
    """Columns of the terminal that stdout is; None where it is none, and lines are not broken."""
    if not sys.stdout.isatty():
        return None
    import shutil  # here, since ranks load this module too and never ask

    return max(_LEAST, shutil.get_terminal_size().columns)


def wrapped(line: str, columns: int | None) -> list[str]:
    """A line broken between words; what follows the first part is indented further."""
    if columns is None or len(line) <= columns:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.lstrip(),
        columns,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_on_hyphens=False,
    )
