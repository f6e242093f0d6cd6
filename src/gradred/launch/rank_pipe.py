"""What a rank tells `gradred run`: that the job goes on without some, how it comes to its end.

The supervisor of a rank gives it a pipe, and its number in a variable. The extension
writes to it (csrc/liveness/supervisor.h), and here the supervisor reads what it has written.
"""

from __future__ import annotations

# The variable that tells a rank by which pipe it reaches its supervisor: a descriptor, its inode.
VARIABLE = "_GRADRED_SUPERVISOR"


def survived_ranks(line: bytes) -> list[int]:
    """The ranks that a rank says have ended; nothing for other lines."""
    words = line.split()
    right = words[:1] == [b"ended"] and all(word.isdigit() for word in words[1:])
    return [int(word) for word in words[1:]] if right else []


def leaving(line: bytes) -> tuple[float, bool, str] | None:
    """How a rank comes to its end; None for other lines.

    Returns:
        When, in seconds since 1970; whether it has lost peers, whose ends come first; and how its
        communicator failed, for peers that do not know it yet.
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
    """What a rank says of MPI_Finalize; nothing for other lines."""
    words = line.split()
    return words[1] if len(words) == 2 and words[0] == b"finalize" else b""
