"""Shared memory that MPIs leave behind when a rank of theirs is killed.

MPICH gives its segments random names, so what belongs to a rank can only be told while it lives.
"""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # see _wire
    from collections.abc import Iterable

# As MPICH and Open MPI name them. Both are attached to while MPI is initialised, and not later.
_NAMES = ("/dev/shm/mpich_shm_", "/dev/shm/sm_segment.", "/dev/shm/vader_segment.")


def mapped_by(pids: Iterable[int]) -> set[str]:
    """The segments of an MPI that processes have mapped and that still have a name."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:
            found.update(line.split(maxsplit=5)[5].rstrip() for line in maps if "/dev/shm/" in line)
    return {name for name in found if name.startswith(_NAMES) and not name.endswith("(deleted)")}


def remove(names: Iterable[str]) -> None:
    """Remove those that are still there."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
