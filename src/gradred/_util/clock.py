"""The clock by which waits end, which tests can step: csrc/base/clock.h is the same for the core.

Launch proxies and supervisors import this module: it needs little of the standard library.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # see launch.protocol
    import mmap

VARIABLE = "GRADRED_CLOCK_FILE"
_STEPPED_NAP = 0.02  # seconds

_steps: mmap.mmap | None = None  # nanoseconds that are added, 8 bytes


def now() -> float:
    """Seconds since a moment that is the same for every process of this host.

    As `time.monotonic()`, and what tests have added to it. How long something took is measured
    with the latter.
    """
    return time.monotonic() if _steps is None else now_ns() * 1e-9


def now_ns() -> int:
    """The same in nanoseconds, as `_core.now_ns` and status pages have it."""
    steps = 0 if _steps is None else int.from_bytes(_steps[:8], sys.byteorder)
    return time.monotonic_ns() + steps


def is_stepped() -> bool:
    """Whether a test may step it."""
    return _steps is not None


def nap(seconds: float) -> float:
    """How long to sleep where a step may come before so many seconds have passed."""
    return seconds if _steps is None else min(seconds, _STEPPED_NAP)


def take_steps_from(path: str) -> None:
    """Add to the clock from now on what this file holds."""
    global _steps
    import mmap  # tests alone need it

    with open(path, "rb") as file:
        _steps = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)


if path := os.environ.get(VARIABLE):
    take_steps_from(path)
