"""Shared memory that MPIs leave behind when a rank of theirs is killed.

MPICH gives its segments random names, so what belongs to a rank can only be told while it lives.
"""

from __future__ import annotations

import contextlib
import os

from gradred.launch import proc

TYPE_CHECKING = False
if TYPE_CHECKING:  # see protocol
    from collections.abc import Iterable

# As MPICH and Open MPI name them. Both are attached to while MPI is initialised, and not later.
_NAMES = ("/dev/shm/mpich_shm_", "/dev/shm/sm_segment.", "/dev/shm/vader_segment.")
_LITTLE = 5 << 20  # bytes of /dev/shm that MPICH 5 takes for one rank


def mapped_by(pids: Iterable[int]) -> set[str]:
    """The segments of an MPI that processes have mapped and that still have a name."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:
            found.update(line.split(maxsplit=5)[5].rstrip() for line in maps if "/dev/shm/" in line)
    return {name for name in found if name.startswith(_NAMES) and not name.endswith("(deleted)")}


def abandoned(since: float) -> set[str]:
    """The segments of an MPI that this user has made since a moment and that no process holds.

    A rank that dies while MPI starts leaves some that nobody has seen it map.
    """
    mine: set[str] = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir("/dev/shm"):
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                is_new = found.st_uid == os.getuid() and found.st_ctime >= since
                if is_new and entry.path.startswith(_NAMES):
                    mine.add(entry.path)
    if not mine:
        return mine
    pids = proc.pids()
    return mine - mapped_by(pids) - _opened_by(pids)


def _opened_by(pids: Iterable[int]) -> set[str]:
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found.add(os.readlink(entry.path))
    return found


def is_missing() -> bool:
    """Whether there is no /dev/shm at all."""
    return not os.path.isdir("/dev/shm")


def lack() -> str:
    """What /dev/shm lacks and how to mend it, to go on a sentence; empty if it lacks nothing."""
    fix = "with memory there MPI starts (docker run --shm-size=1g)"
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return f": /dev/shm is missing, and {fix}"
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if free >= _LITTLE:
        return ""
    return f": /dev/shm has {free / 2**20:.1f} of {total / 2**20:.1f} MiB free, and {fix}"


def remove(names: Iterable[str]) -> None:
    """Remove those that are still there."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
