"""Text as wide as the terminal that shows it; elsewhere lines stay as they are."""

from __future__ import annotations

import shutil
import sys
import textwrap

_LEAST = 40  # columns: a narrower terminal breaks lines itself


def width() -> int | None:
    """Columns of the terminal that stdout is; None where it is none, and lines are not broken."""
    if not sys.stdout.isatty():
        return None
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
