"""The failure board of a rank: a page of memory in which its supervisor lists failed ranks.

The supervisor writes what the launcher reports about any rank on any host. The extension reads the
page (csrc/liveness/failure_board.h) whenever it waits. The page has no name, so it is freed with
its processes.

The page holds text. The first line identifies it for the rank. Then each failed rank has a line,
which is valid once it ends with a newline: its number, how it failed, and what gradred had reported
to it before, separated by tabs. The last byte is 1 if the hosts of an elastic job have changed.
"""

from __future__ import annotations

import mmap
import os

# The variable by which a rank finds its page (csrc/runtime/launched.cc): the supervisor's process,
# its descriptor, and the page's first line.
VARIABLE = "_GRADRED_FAILURE_BOARD"

ENTRIES = 16  # enough for any reader
_WORDS = 256  # bytes
_BYTES = 16384


class FailureBoard:
    """The supervisor's side of the page."""

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
        """Add a failed rank, how it failed, and what gradred had reported to it before, if any.

        Ignores failures after the first `ENTRIES`.
        """
        if self._count == ENTRIES:
            return
        self._count += 1
        self._write(b"\t".join([str(rank).encode(), _words(text), _words(report)]))

    def note_hosts(self) -> None:
        """Record that the available hosts are not those of the job."""
        self._memory[_BYTES - 1] = 1

    def _write(self, line: bytes) -> None:
        end = self._end + len(line)
        self._memory[self._end : end] = line
        self._memory[end : end + 1] = b"\n"  # makes the line valid
        self._end = end + 1


def hosts_have_changed(where: str) -> bool:
    """Return, on a rank, whether `note_hosts` has recorded other hosts; `where`: see `VARIABLE`."""
    pid, file, token = where.split()
    with open(f"/proc/{pid}/fd/{file}", "rb", buffering=0) as page:
        text = page.read(_BYTES)
    return text.startswith(token.encode()) and text[-1] == 1


def _words(text: str) -> bytes:
    """Return the text as one line without tabs, cut at the longest length."""
    return " ".join(text.split()).encode(errors="replace")[: _WORDS - 1]
