"""How a rank speaks to `gradred run`: that the job goes on without some, how it comes to its end.

The keeper of a rank (see `_keeper`) gives it a pipe, and its number in a variable.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Sequence

from gradred import _wire


def tell_survived(ended: Sequence[int]) -> None:
    """Say which ranks of COMM_WORLD have ended that this job goes on without; none: say nothing."""
    if ended:
        _say(_wire.survived_line(ended))


def tell_leaving() -> None:
    """Say that this rank comes to its end: whoever notices and fails, does so later."""
    _say(_wire.leaving_line(time.time()))


def pipe() -> tuple[int, int]:
    """The keeper's pipe and its inode; -1 and 0 without a keeper."""
    words = os.environ.get(_wire.KEEPER, "").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else (-1, 0)


def _say(line: bytes) -> None:
    number, inode = pipe()
    if number >= 0 and _is_open(number, inode):
        with contextlib.suppress(BrokenPipeError):  # the keeper has ended, and so will this process
            os.write(number, line)


def _is_open(number: int, inode: int) -> bool:
    """False where the program has closed it; the number may stand for another file by now."""
    try:
        found = os.fstat(number)
    except OSError:
        return False
    return stat.S_ISFIFO(found.st_mode) and found.st_ino == inode
