"""The clock for timeouts, which tests can step forward; csrc/base/clock.h is the same for the core.

Launch proxies and supervisors import this module, so it imports little of the standard library.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # launch/protocol.py says why `typing` is not imported
    import mmap

VARIABLE = "GRADRED_CLOCK_FILE"
_STEPPED_NAP = 0.02  # seconds

_steps: mmap.mmap | None = None  # 8 bytes: nanoseconds that are added to the clock


def now() -> float:
    """Return seconds since a moment that is the same for every process of this host.

    This is `time.monotonic()` plus what tests have added to it. Use `time.monotonic()` to measure
    how long something took.
    """
    return time.monotonic() if _steps is None else now_ns() * 1e-9


def now_ns() -> int:
    """Return `now()` in nanoseconds, as `_core.now_ns` and status pages have it."""
    steps = 0 if _steps is None else int.from_bytes(_steps[:8], sys.byteorder)
    return time.monotonic_ns() + steps


def is_stepped() -> bool:
    """Return whether a test may step the clock."""
    return _steps is not None


def nap(seconds: float) -> float:
    """Return how long to sleep, if a step may come within so many seconds."""
    return seconds if _steps is None else min(seconds, _STEPPED_NAP)


def take_steps_from(path: str) -> None:
    """Add the value in this file to the clock from now on."""
    global _steps
    import mmap  # only tests need it

    with open(path, "rb") as file:
        _steps = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)


if path := os.environ.get(VARIABLE):
    take_steps_from(path)
