"""How far a run is: a bar on a terminal, else a line from time to time."""

from __future__ import annotations

import sys
import time

_WIDTH = 24
_EVERY = {True: 0.2, False: 30.0}  # seconds between two changes of the bar, between two lines
_KNOWN = 0.02  # share of the steps from which on the rest of the time is estimated


class Bar:
    """Shows how many of all steps are made, and how long the rest may take.

    Args:
        steps: of the whole run.
        on_terminal: whether stderr is a terminal, where a bar stays in its line.
        writes: whether this rank is the one that writes.
    """

    def __init__(self, steps: int, *, on_terminal: bool, writes: bool) -> None:
        self._steps, self._on_terminal, self._writes = max(steps, 1), on_terminal, writes
        self._done, self._where = 0, ""
        self._begin = self._last = time.monotonic()
        self._length = 0

    def begin(self, where: str) -> None:
        """The next steps are of this cell and repeat."""
        self._where = where

    def step(self, peer: str) -> None:
        """Count a step of a peer."""
        self._done += 1
        now = time.monotonic()
        if self._writes and now - self._last >= _EVERY[self._on_terminal]:
            self._last = now
            text = self._text(peer, now - self._begin)
            if self._on_terminal:
                full = round(_WIDTH * self._share)
                self._write(f"[{'#' * full:.<{_WIDTH}}] {text}")
            else:
                print(f"# {text}", file=sys.stderr, flush=True)

    @property
    def _share(self) -> float:
        return min(1.0, self._done / self._steps)

    def _text(self, peer: str, seconds: float) -> str:
        share = self._share
        left = f", {_time(seconds / share - seconds)} left" if share >= _KNOWN else ""
        return f"{share:4.0%}{left}: {self._where}, {peer}"

    def clear(self) -> None:
        """Make room for a line of output."""
        if self._length:
            self._write("")
            self._length = 0

    def _write(self, line: str) -> None:
        sys.stderr.write(f"{line:{self._length}}\r")
        sys.stderr.flush()
        self._length = len(line)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
