"""Which gradients share a message: the last gradient of each, in the order of backward."""

from __future__ import annotations

from collections.abc import Callable

from gradred_lab.simulate.accuracy import Floats

PIECE = 4 << 20
"""Bytes that ByteScheduler sends at once."""


def merged(
    sizes: Floats, ready: Floats, latency: float, cost: Callable[[float], float]
) -> list[int]:
    """A gradient waits for the next one if that is ready within the latency of a message.

    Source: Shi et al., MG-WFBP, INFOCOM 2019.

    Args:
        sizes: bytes of each gradient.
        ready: when each is ready, in seconds from any time.
        latency: seconds of a message that is hardly longer than nothing.
        cost: seconds of a message by its bytes.
    """
    lasts, free, waiting = [], float("-inf"), 0.0
    for i, nbytes in enumerate(sizes):
        waiting += float(nbytes)
        start = max(free, float(ready[i]))
        if i + 1 < len(sizes) and float(ready[i + 1]) - start < latency:
            continue
        lasts.append(i)
        free, waiting = start + cost(waiting), 0.0
    return lasts


def buckets(sizes: Floats, nbytes: float, first: float | None = None) -> list[int]:
    """Messages of at least so many bytes, and one of the rest; the first may be another length."""
    lasts: list[int] = []
    waiting = 0.0
    for i, one in enumerate(sizes):
        waiting += float(one)
        wanted = nbytes if lasts or first is None else first
        if waiting >= wanted or i + 1 == len(sizes):
            lasts.append(i)
            waiting = 0.0
    return lasts
