"""How a rank speaks to `gradred run`: that the job goes on without some, how it comes to its end.

The keeper of a rank (see `_keeper`) gives it a pipe, and its number in a variable.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` costs the keeper as much time as the rest together
    from collections.abc import Iterable

# The variable that tells a rank by which pipe it reaches its keeper: a descriptor and its inode.
KEEPER = "_GRADRED_KEEPER"

_VERDICT_BYTES = 250  # as many as _news keeps


def tell_survived(ended: Iterable[int]) -> None:
    """Say which ranks of COMM_WORLD have ended that this job goes on without; none: say nothing."""
    if ended:
        _say(survived_line(ended))


def tell_leaving(*, follows: bool, verdict: str = "") -> None:
    """Say that this rank comes to its end: whoever notices and fails, does so later.

    Args:
        follows: whether it has lost peers, whose ends come first.
        verdict: how its communicator failed, for peers that do not know it yet.
    """
    _say(leaving_line(time.time(), follows, verdict))


def pipe() -> tuple[int, int]:
    """The keeper's pipe and its inode; -1 and 0 without a keeper."""
    words = os.environ.get(KEEPER, "").split()
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


# ---- the lines ---------------------------------------------------------------------------------


def survived_line(ended: Iterable[int]) -> bytes:
    """What a rank writes to its keeper: the ranks that have ended."""
    return b"ended " + b" ".join(b"%d" % rank for rank in ended) + b"\n"


def survived_ranks(line: bytes) -> list[int]:
    """What `survived_line` was given; nothing for other lines."""
    words = line.split()
    right = words[:1] == [b"ended"] and all(word.isdigit() for word in words[1:])
    return [int(word) for word in words[1:]] if right else []


def leaving_line(at: float, follows: bool, verdict: str = "") -> bytes:
    """What a rank writes to its keeper when it comes to its end, in seconds since 1970."""
    words = " ".join(verdict.split()).encode(errors="replace")[:_VERDICT_BYTES]
    return b"%s %.6f %s\n" % (b"follows" if follows else b"leaves", at, words)


def leaving(line: bytes) -> tuple[float, bool, str] | None:
    """What `leaving_line` was given; None for other lines."""
    words = line.split(maxsplit=2)
    if len(words) < 2 or words[0] not in (b"follows", b"leaves"):
        return None
    try:
        verdict = words[2].decode(errors="ignore") if len(words) > 2 else ""
        return float(words[1]), words[0] == b"follows", verdict
    except ValueError:
        return None


def finalize_word(line: bytes) -> bytes:
    """What a rank says of MPI_Finalize; nothing for other lines."""
    words = line.split()
    return words[1] if len(words) == 2 and words[0] == b"finalize" else b""
