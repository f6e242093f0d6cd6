"""Shared memory that an MPI leaves behind when one of its ranks is killed.

MPICH gives its segments random names, so a rank's segments can be found only while it runs.
"""

from __future__ import annotations

import contextlib
import os

from gradred.launch import proc

TYPE_CHECKING = False
if TYPE_CHECKING:  # protocol.py says why `typing` is not imported
    from collections.abc import Iterable

# The names of MPICH and Open MPI. Processes attach to these segments only while MPI initialises.
_NAMES = ("/dev/shm/mpich_shm_", "/dev/shm/sm_segment.", "/dev/shm/vader_segment.")
_LITTLE = 5 << 20  # bytes of /dev/shm that MPICH 5 needs for one rank


def mapped_by(pids: Iterable[int]) -> set[str]:
    """Return the MPI segments that processes have mapped and that still have a name."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:
            found.update(line.split(maxsplit=5)[5].rstrip() for line in maps if "/dev/shm/" in line)
    return {name for name in found if name.startswith(_NAMES) and not name.endswith("(deleted)")}


def abandoned(since: float) -> set[str]:
    """Return this user's MPI segments made after `since` that no process has mapped or opened.

    A rank that ends while MPI starts leaves segments that nobody has seen mapped.
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
    return mine - mapped_by(pids) - set[str]().union(*map(proc.opened, pids))


def lack() -> str:
    """Return what /dev/shm lacks and a remedy, as the end of a sentence; empty if it is fine."""
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
    """Remove the segments that still exist."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
