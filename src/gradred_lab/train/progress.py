"""A progress bar, only on a terminal."""

from __future__ import annotations

import sys
import time

_WIDTH = 24
_EVERY = 0.2  # seconds between two changes
_KNOWN = 0.02  # share of the steps from which on the rest of the time is estimated


class Bar:
    """Shows how many of all steps are made, and how long the rest may take.

    Args:
        steps: of the whole run.
        shown: whether stderr is a terminal, and this rank the one that writes.
    """

    def __init__(self, steps: int, shown: bool) -> None:
        self._steps, self._shown = max(steps, 1), shown
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
        if self._shown and now - self._last >= _EVERY:
            self._last = now
            self._write(self._text(peer, now - self._begin))

    def _text(self, peer: str, seconds: float) -> str:
        share = min(1.0, self._done / self._steps)
        full = round(_WIDTH * share)
        left = f", {_time(seconds / share - seconds)} left" if share >= _KNOWN else ""
        return f"[{'#' * full:.<{_WIDTH}}] {share:4.0%}{left}: {self._where}, {peer}"

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
