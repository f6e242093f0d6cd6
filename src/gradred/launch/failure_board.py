"""The failure board of a rank: failed ranks, in a page of memory that its supervisor writes.

The supervisor writes what the launcher has told it about any rank on any host; the extension reads
it (csrc/liveness/failure_board.h) wherever it waits. The page has no name: it ends with its
processes. It holds text: a first line by which the rank knows it, then one for each failed rank,
which counts once it ends: its number, how it failed, what gradred had told it, between tabs. The
last byte says whether other hosts are there than those of an elastic job.
"""

from __future__ import annotations

import mmap
import os

# How a rank finds its page (csrc/runtime/launched.cc): the supervisor's process, its descriptor,
# and the page's first line.
VARIABLE = "_GRADRED_FAILURE_BOARD"

ENTRIES = 16  # who reads them has heard enough
_WORDS = 256  # bytes
_BYTES = 16384


class FailureBoard:
    """The supervisor's end."""

    def __init__(self) -> None:
        self._file = os.memfd_create("gradred-failures")
        os.ftruncate(self._file, _BYTES)
        self._memory = mmap.mmap(self._file, _BYTES)
        self._token = os.urandom(16).hex()
        self._end = self._count = 0
        self._write(self._token.encode())

    @property
    def where(self) -> str:
        """The value of `VARIABLE` for the rank."""
        return f"{os.getpid()} {self._file} {self._token}"

    def add(self, rank: int, text: str, report: str) -> None:
        """Tell that a rank has failed, how, and what gradred had told it before, if anything.

        More than `ENTRIES` say nothing new.
        """
        if self._count == ENTRIES:
            return
        self._count += 1
        self._write(b"\t".join([str(rank).encode(), _words(text), _words(report)]))

    def note_hosts(self) -> None:
        """Tell that other hosts are there than those of the job."""
        self._memory[_BYTES - 1] = 1

    def _write(self, line: bytes) -> None:
        end = self._end + len(line)
        self._memory[self._end : end] = line
        self._memory[end : end + 1] = b"\n"  # from here on it counts
        self._end = end + 1


def hosts_have_changed(where: str) -> bool:
    """What `note_hosts` has told, for a rank.

    Args:
        where: the value of `VARIABLE`.
    """
    pid, file, token = where.split()
    with open(f"/proc/{pid}/fd/{file}", "rb", buffering=0) as page:
        told = page.read(_BYTES)
    return told.startswith(token.encode()) and told[-1] == 1


def _words(text: str) -> bytes:
    """In one line without tabs, and cut where it is too long."""
    return " ".join(text.split()).encode(errors="replace")[: _WORDS - 1]
