"""The reports of a rank to `gradred run`: that it continues without failed ranks, and how it ends.

The supervisor gives its rank a pipe, and the pipe's number in a variable. The extension writes to
the pipe (csrc/liveness/supervisor.h), and the supervisor parses the lines with this module.
"""

from __future__ import annotations

# The variable by which a rank finds its supervisor's pipe: a descriptor and its inode.
VARIABLE = "_GRADRED_SUPERVISOR"


def survived_ranks(line: bytes) -> list[int]:
    """Return the ranks that a rank reports as ended; empty for other lines."""
    words = line.split()
    right = words[:1] == [b"ended"] and all(word.isdigit() for word in words[1:])
    return [int(word) for word in words[1:]] if right else []


def left_out(line: bytes) -> list[int] | None:
    """Return all ranks that a rank reports to go on without, alive or not; None: another line."""
    words = line.split()
    right = words[:1] == [b"without"] and all(word.isdigit() for word in words[1:])
    return [int(word) for word in words[1:]] if right else None


def leaving(line: bytes) -> tuple[float, bool, str] | None:
    """Parse a rank's report on its end; None for other lines.

    Returns:
        The time in seconds since 1970; whether the rank has lost peers, which ended before it; and
        how its communicator failed, for peers that do not know it yet.
    """
    words = line.split(maxsplit=2)
    if len(words) < 2 or words[0] not in (b"follows", b"leaves"):
        return None
    try:
        report = words[2].decode(errors="ignore") if len(words) > 2 else ""
        return float(words[1]), words[0] == b"follows", report
    except ValueError:
        return None


def finalize_word(line: bytes) -> bytes:
    """Return a rank's report on MPI_Finalize; empty for other lines."""
    words = line.split()
    return words[1] if len(words) == 2 and words[0] == b"finalize" else b""
