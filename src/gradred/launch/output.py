"""The ranks' output: complete lines of each rank to a common place, or a file for each rank."""

from __future__ import annotations

import errno
import os
import pathlib
import select
import selectors
from collections.abc import Callable
from typing import Literal

from gradred._util import clock, files
from gradred.errors import UsageError

Stream = Literal["stdout", "stderr"]
Write = Callable[[bytes], None]

_LONGEST = 1 << 20  # bytes of an unfinished line that are buffered
_SHOWN_AFTER = 0.2  # seconds until a terminal shows an unfinished line: a prompt, a progress bar
_PIECE = 4096  # a pipe that is writable accepts this many bytes at once
_ENOUGH = 1 << 20  # bytes buffered for a slow reader, from which on the ranks have to wait


def colours_wanted() -> bool:
    """Return whether a terminal should show colours, by the rule of no-color.org."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Lost(Exception):  # noqa: N818
    """A place accepts no more output."""

    def __init__(self, place: str, error: OSError) -> None:
        super().__init__(f"{place} cannot be written: {error.strerror}")
        self.place = place


class Unwritable(Lost):
    """The output cannot be written although its reader is there, for example on a full disk."""


class ReaderLeft(Lost):
    """The reader has closed its end, as `head` does, or the terminal was closed."""

    def __init__(self, place: str, error: OSError) -> None:
        super().__init__(place, error)
        self.was_terminal = error.errno == errno.EIO


class Screen:
    """One place that several ranks print to.

    Args:
        write: called with the text that is to appear there.
        label: returns the text before each line of a rank; empty for none.
        eager: whether to show an unfinished line after a moment, as a terminal's user expects. If
            another rank's line comes in between, the rest starts on a new line.
    """

    def __init__(self, write: Write, label: Callable[[int], bytes], *, eager: bool = False) -> None:
        self._write = write
        self._label = label
        self._eager = eager
        self._rest: dict[tuple[int, Stream], bytearray] = {}
        self._since: dict[tuple[int, Stream], float] = {}
        self._unfinished: tuple[int, Stream] | None = None  # whose unfinished line is shown

    def feed(self, rank: int, stream: Stream, data: bytes) -> None:
        """Add a piece of a rank's output."""
        key = rank, stream
        rest = self._rest.setdefault(key, bytearray())
        rest += data
        # A carriage return ends a line too, for progress bars. The last may be part of a "\r\n".
        end = max(rest.rfind(b"\n"), rest.rfind(b"\r", 0, max(len(rest) - 1, 0))) + 1
        if end == 0 and len(rest) > _LONGEST:
            end = len(rest)
        self._show(key, end)

    def show_unfinished(self) -> None:
        """Show lines that have been unfinished for a moment; to be called repeatedly."""
        if self._eager:
            now = clock.now()
            for key in [key for key, since in self._since.items() if now - since >= _SHOWN_AFTER]:
                self._show(key, len(self._rest[key]))

    def say(self, line: str) -> None:
        """Show a line of the launcher's own."""
        self._start_line(None)
        self._write(f"{line}\n".encode(errors="surrogateescape"))

    def finish(self) -> None:
        """Show the rest; unfinished lines of different ranks stay on separate lines."""
        for key in list(self._rest):
            self._show(key, len(self._rest[key]))

    def _show(self, key: tuple[int, Stream], end: int) -> None:
        rest = self._rest[key]
        if end:
            self._start_line(key)
            self._write(self._labelled(key, bytes(rest[:end])))
            self._unfinished = None if rest[end - 1] in b"\r\n" else key
            del rest[:end]
            self._since.pop(key, None)
        if rest:
            self._since.setdefault(key, clock.now())

    def _start_line(self, key: tuple[int, Stream] | None) -> None:
        if self._unfinished not in (None, key):
            self._write(b"\n")
            self._unfinished = None

    def _labelled(self, key: tuple[int, Stream], text: bytes) -> bytes:
        label = self._label(key[0])
        if not label:
            return text
        first = b"" if self._unfinished == key else label
        return first + label.join(text.splitlines(keepends=True))


class Writer:
    """Writes to a descriptor as fast as its reader reads, without blocking this process.

    Its calls in the background, and `flush`, raise ReaderLeft or Unwritable.
    """

    def __init__(self, fd: int, stream: Stream, selector: selectors.BaseSelector) -> None:
        self._fd = fd
        self._stream = stream
        self._selector = selector
        self._pending = bytearray()

    def congested(self) -> bool:
        """Return whether so much is buffered that the ranks should wait."""
        return len(self._pending) > _ENOUGH

    def write(self, data: bytes) -> None:
        """Buffer data; it is written when the reader allows it."""
        if data and not self._pending:
            self._selector.register(self._fd, selectors.EVENT_WRITE, self._go_on)
        self._pending += data

    def flush(self) -> None:
        """Block until all data is written."""
        while self._pending:
            select.select([], [self._fd], [])
            self._go_on(selectors.EVENT_WRITE)

    def abandon(self) -> None:
        """Drop the buffered data."""
        if self._pending:
            self._pending.clear()
            self._selector.unregister(self._fd)

    def _go_on(self, _: int) -> None:
        try:
            del self._pending[: os.write(self._fd, self._pending[:_PIECE])]
        except BlockingIOError:  # another process has made this terminal non-blocking
            return
        except OSError as error:
            left = error.errno in (errno.EPIPE, errno.EIO)
            raise (ReaderLeft if left else Unwritable)(self._stream, error) from None
        if not self._pending:
            self._selector.unregister(self._fd)


class Files:
    """One file per rank with all its output, in a folder on the launching host.

    All files are created empty at once. Each is opened when its rank prints: by then the job has
    raised the limit of open files.

    Raises:
        UsageError: the folder or a file cannot be made.
    """

    def __init__(self, folder: str, ranks: int, append: bool = False) -> None:
        width = len(str(ranks - 1))
        self._paths = [pathlib.Path(folder, f"rank.{rank:0{width}d}.txt") for rank in range(ranks)]
        self._opened: dict[int, int] = {}
        try:
            os.makedirs(folder, exist_ok=True)
            for path in self._paths:
                os.close(files.create(path, append=append))
        except OSError as error:
            found = f"{error.filename or folder} cannot be written ({error.strerror})"
            remedy = "Name a folder that exists or can be made"
            raise UsageError(f"--output-filename {folder}", found, remedy) from None

    def feed(self, rank: int, data: bytes) -> None:
        """Append to a rank's file.

        Raises:
            Unwritable: it cannot be written any more.
        """
        try:
            if rank not in self._opened:
                self._opened[rank] = files.create(self._paths[rank], append=True)
            while data:
                data = data[os.write(self._opened[rank], data) :]
        except OSError as error:
            raise Unwritable(str(self._paths[rank]), error) from None

    def close(self) -> None:
        """Close all files."""
        while self._opened:
            os.close(self._opened.popitem()[1])
