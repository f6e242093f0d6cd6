"""Settings that Horovod reads from environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def is_true(variable: str) -> bool:
    """Read a variable as Horovod does: true if it is an integer above 0."""
    try:
        return int(os.environ.get(variable, "0")) > 0
    except ValueError:
        return False


def most_fused_bytes() -> int:
    """The value of HOROVOD_FUSION_THRESHOLD, limited to gradred's own maximum."""
    from gradred.named import MOST_FUSED_BYTES

    value = os.environ.get("HOROVOD_FUSION_THRESHOLD", "")
    try:
        return min(MOST_FUSED_BYTES, max(0, int(value)))
    except ValueError:
        return MOST_FUSED_BYTES


_NEVER = 1e8  # seconds


@contextmanager
def stall_limits() -> Iterator[None]:
    """Apply Horovod's stall limits to communicators made in this context.

    A limit that the user has set for gradred itself takes precedence.
    HOROVOD_STALL_CHECK_TIME_SECONDS: gradred reports an operation that waits this long.
    HOROVOD_STALL_CHECK_DISABLE=1: gradred reports none. HOROVOD_STALL_SHUTDOWN_TIME_SECONDS: a
    waiting operation fails after this time; 0 means never.
    """
    from gradred import config

    asked: dict[str, float] = {}
    if is_true("HOROVOD_STALL_CHECK_DISABLE"):
        asked["warn_after"] = _NEVER
    elif is_true("HOROVOD_STALL_CHECK_TIME_SECONDS"):
        asked["warn_after"] = float(os.environ["HOROVOD_STALL_CHECK_TIME_SECONDS"])
    if is_true("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"):
        asked["timeout"] = float(os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"])
    known = config.snapshot()
    mine = [name for name in asked if known[name].source == "default"]
    for name in mine:
        config.set(name, asked[name])
    try:
        yield
    finally:
        for name in mine:
            config.reset(name)
