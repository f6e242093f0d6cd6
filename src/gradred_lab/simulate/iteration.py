"""One iteration of data-parallel training: what communication adds to one device's time.

Forward takes a third of the time of one device, backward two thirds. A gradient may leave when
backward has made it, one message follows another, and a scheduler decides which gradients share a
message. What ends after backward is added to the iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradred_lab.simulate import grouping
from gradred_lab.simulate.accuracy import Floats
from gradred_lab.simulate.networks import Network

BACKWARD = 2 / 3  # of the time of one device
_PACKING = 0.04  # of the time of one message of all gradients: to pack and unpack them


@dataclass(frozen=True)
class Link:
    """Seconds per message, and per byte, of one allreduce (or push and pull) among all."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class Scheme:
    """Which gradients share a message.

    `kind` is `whole` (all, after backward), `tensor` (each alone), `merged` (where waiting for the
    next one costs less than a further message), `bucket` (at least `bucket` bytes), or `pieces`
    (by priority, in pieces, into the next forward).
    """

    kind: str
    bucket: float = 0.0


def added(
    network: Network, seconds: float, scheme: Scheme, link: Link, *, itemsize: float, overlap: float
) -> float:
    """Seconds that communication adds to an iteration of `seconds` on one device.

    Args:
        network: gradients and when they are ready.
        seconds: the iteration of one device alone.
        scheme: what shares a message.
        link: what a message costs.
        itemsize: bytes of an element on the wire.
        overlap: share of backward during which messages move at all.
    """
    sizes = network.elements * itemsize
    if scheme.kind == "whole":
        return link.alpha + (1 + _PACKING) * link.beta * float(sizes.sum())
    window = overlap * BACKWARD * seconds
    ready = (network.ready - 1.0) * window  # before the end of backward
    if scheme.kind == "pieces":
        return _pieces(sizes, link, overlap * seconds)
    lasts = list(range(len(sizes)))
    if scheme.kind == "merged":
        lasts = grouping.merged(sizes, ready, link.alpha, lambda n: link.alpha + link.beta * n)
    elif scheme.kind == "bucket":
        lasts = grouping.buckets(sizes, scheme.bucket)
    ready, sizes = ready[lasts], np.diff(np.cumsum(sizes)[lasts], prepend=0.0)
    return max(0.0, _end(ready, link.alpha + link.beta * sizes))


def _end(ready: Floats, costs: Floats) -> float:
    """When the last message has arrived, if each waits for the one before and for its gradient."""
    after = np.cumsum(costs[::-1])[::-1]  # from the start of each to the end of all, if none waits
    return float(np.max(ready + after))


def _pieces(sizes: Floats, link: Link, window: float) -> float:
    """Messages go on during the next forward, all but the gradient that it needs first."""
    pieces = np.ceil(sizes / grouping.PIECE)
    costs = pieces * link.alpha + link.beta * sizes
    first = min(float(costs[-1]), float(link.alpha + link.beta * grouping.PIECE))
    return max(first, float(costs.sum()) - window, 0.0)
