"""What a rank tells `gradred run` when it has shrunk its communicator: the job goes on.

The keeper of a rank (see `_keeper`) gives it a pipe, and its number in a variable.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from gradred import _wire


def tell_launcher(ended: Sequence[int]) -> None:
    """Say which ranks of COMM_WORLD have ended that this job goes on without; none: say nothing."""
    pipe = _pipe()
    if ended and pipe is not None:
        os.write(pipe, _wire.survived_line(ended))


def _pipe() -> int | None:
    """The keeper's pipe; None without a keeper, and where a program has closed it."""
    words = os.environ.get(_wire.KEEPER, "").split()
    if len(words) != 2:
        return None
    pipe, inode = map(int, words)
    try:
        found = os.fstat(pipe)
    except OSError:
        return None
    # The number may stand for another file by now.
    return pipe if stat.S_ISFIFO(found.st_mode) and found.st_ino == inode else None
