"""Ranks that have failed, as a rank's keeper tells the rank: a page of memory that both see.

The keeper writes what the launcher has told it about any rank on any host; the extension reads it
(csrc/base/news.h) wherever it waits. The page has no name: it ends with its processes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # see _wire
    from typing import Any

# How a rank finds its page: the keeper's process, its descriptor, and what the page begins with.
VARIABLE = "_GRADRED_NEWS"

_TOKEN_BYTES = 64
_COUNT = struct.Struct("Q")
_ENTRY = struct.Struct("q248s256s")
ENTRIES = 16
_BYTES = _TOKEN_BYTES + _COUNT.size + ENTRIES * _ENTRY.size

_kept: list[Any] = []  # for as long as the process lives


class Page:
    """The keeper's end."""

    def __init__(self) -> None:
        self._file = os.memfd_create("gradred-news")
        os.ftruncate(self._file, _BYTES)
        self._memory = mmap.mmap(self._file, _BYTES)
        self._token = os.urandom(16).hex()
        self._memory[: len(self._token)] = self._token.encode()
        self._count = 0

    @property
    def where(self) -> str:
        """The value of `VARIABLE` for the rank."""
        return f"{os.getpid()} {self._file} {self._token}"

    def add(self, rank: int, text: str, verdict: str) -> None:
        """Tell that a rank has failed, how, and what gradred had told it before, if anything.

        More than `ENTRIES` say nothing new.
        """
        if self._count == ENTRIES:
            return
        words = text.encode(errors="replace")[:247]
        told = verdict.encode(errors="replace")[:255]
        _ENTRY.pack_into(self._memory, self._place(self._count), rank, words, told)
        self._count += 1
        _COUNT.pack_into(self._memory, _TOKEN_BYTES, self._count)

    def _place(self, number: int) -> int:
        return _TOKEN_BYTES + _COUNT.size + number * _ENTRY.size


def address() -> int:
    """Where this rank's page is mapped; 0 if it has none, or cannot reach it from a container."""
    if not _kept:
        with contextlib.suppress(OSError, ValueError):
            process, file, token = os.environ.get(VARIABLE, "").split()
            page = os.open(f"/proc/{int(process)}/fd/{int(file)}", os.O_RDONLY | os.O_NONBLOCK)
            try:
                if os.fstat(page).st_size == _BYTES:  # else the number means another process here
                    memory = mmap.mmap(page, _BYTES, prot=mmap.PROT_READ)
                    if memory[: len(token)] == token.encode():
                        _kept.append(memory)
            finally:
                os.close(page)
    if not _kept:
        return 0
    import numpy as np

    return int(np.frombuffer(_kept[0], np.uint8).__array_interface__["data"][0])
