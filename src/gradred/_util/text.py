"""Format text: `0-2, 5` for a list of numbers, and lines as wide as the terminal."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Iterable

_UNITS = ("B", "KiB", "MiB", "GiB")
_LEAST = 40  # columns; a narrower terminal breaks lines by itself


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as text: `0-2, 5, 6` for 0, 1, 2, 5 and 6."""
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def ranks_text(numbers: Iterable[int]) -> str:
    """Return ranks as text: `rank 3`, or `ranks 0-2, 5`."""
    ordered = sorted(numbers)
    return f"rank{'' if len(ordered) == 1 else 's'} {ranges(ordered)}"


def size_text(count: float) -> str:
    """Return a number of bytes in the largest binary unit of which there is at least one."""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count /= 1024
        power += 1
    return f"{count:.4g} {_UNITS[power]}"


def width() -> int | None:
    """Return the columns of the terminal at stdout; None if it is none and lines stay whole."""
    if not sys.stdout.isatty():
        return None
    import shutil  # imported here because ranks load this module and do not need it

    return max(_LEAST, shutil.get_terminal_size().columns)


def wrapped(line: str, columns: int | None) -> list[str]:
    """Break a line between words; all parts after the first are indented further."""
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
