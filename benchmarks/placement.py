"""The placement of two ranks' cores, derived from the one-way latency between them.

The cores of a virtual machine move. For some seconds two of them share a cache, for others they do
not, and the same call then takes several times as long. The one-way latency before each round shows
which of the two it was. Latencies between the two groups, or far above both, belong to neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import gradred
from gradred import _core

NEAR, FAR, ALL, UNKNOWN = "near", "far", "all", "unknown"

# With a longer latency, one of the two ranks was waiting for a core.
_RUNNING_US = 1.0
# Two groups of latencies are two placements if the longer one is longer by this factor, and at
# least this part of all rounds belongs to each.
_FACTOR = 1.7
_LEAST_PART = 0.1
_CALLS, _TURNS = 3, 64


def flag_us(comm: gradred.Comm) -> float | None:
    """Measure the one-way latency between ranks 0 and 1 in microseconds, the least of a few.

    Collective; the same on every rank. None if they share no memory, or there is one rank.
    """
    if comm.Get_size() == 1:
        return None
    least = float("inf")
    for _ in range(_CALLS):
        least = min(least, comm.bcast(_core.one_way_latency(comm, turns=_TURNS) * 1e6))
        if least > _RUNNING_US:  # the next measurement might wait for a core in each turn
            break
    return least or None


def named(flags_us: Sequence[float | None]) -> list[str]:
    """Return the placement of each round: near or far if both occurred, else one name for all.

    A round is `UNKNOWN` if a rank was waiting for a core before it, or if it has no latency.
    """
    known = sorted(flag for flag in flags_us if flag is not None and flag <= _RUNNING_US)
    border = _border(known)
    return [_name(flag, border) for flag in flags_us]


def _name(flag: float | None, border: float | None) -> str:
    if flag is None or flag > _RUNNING_US:
        return UNKNOWN
    if border is None:
        return ALL
    return NEAR if flag < border else FAR


def _border(ordered: Sequence[float]) -> float | None:
    """Return a border in the widest gap between the two groups; None if there is one group."""
    least = max(2, int(len(ordered) * _LEAST_PART))
    if len(ordered) < 2 * least:
        return None
    below, above = np.array(ordered[least - 1 : -least]), np.array(ordered[least : 1 - least])
    gap = int(np.argmax(above / below))
    groups = np.array(ordered[: least + gap]), np.array(ordered[least + gap :])
    if np.median(groups[1]) < _FACTOR * np.median(groups[0]):
        return None
    return float(np.sqrt(below[gap] * above[gap]))
