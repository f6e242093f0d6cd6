"""How the cores of two ranks lie to each other, told by the one-way latency between them.

The cores of a virtual machine move: for some seconds two of them share a cache, for others they do
not, and the same call takes a multiple of the time. Rounds of two such placements are told apart by
the one-way latency before each; what falls between them, or far above both, belongs to neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import gradred
from gradred import _core

NEAR, FAR, ALL, UNKNOWN = "near", "far", "all", "unknown"

# A longer one waited for a core: one of the two ranks was not running.
_RUNNING_US = 1.0
# Two groups of latencies are two placements if one is so much longer than the other, and no fewer
# rounds than this part of all belong to each.
_FACTOR = 1.7
_LEAST_PART = 0.1
_CALLS, _TURNS = 3, 64


def flag_us(comm: gradred.Comm) -> float | None:
    """One-way latency between ranks 0 and 1 now in microseconds, the least of a few.

    Collective; the same on every rank. None where they share no memory, or there is one rank.
    """
    if comm.Get_size() == 1:
        return None
    least = float("inf")
    for _ in range(_CALLS):
        least = min(least, comm.bcast(_core.one_way_latency(comm, turns=_TURNS) * 1e6))
        if least > _RUNNING_US:  # each turn of the next one might wait for a core, too
            break
    return least or None


def named(flags_us: Sequence[float | None]) -> list[str]:
    """The placement of each round: near or far where both occurred, else one name for all.

    `UNKNOWN` are rounds before which one of the ranks was not running, and those without a figure.
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
    """In the widest gap between the two groups of latencies; None where there is one group."""
    least = max(2, int(len(ordered) * _LEAST_PART))
    if len(ordered) < 2 * least:
        return None
    below, above = np.array(ordered[least - 1 : -least]), np.array(ordered[least : 1 - least])
    gap = int(np.argmax(above / below))
    groups = np.array(ordered[: least + gap]), np.array(ordered[least + gap :])
    if np.median(groups[1]) < _FACTOR * np.median(groups[0]):
        return None
    return float(np.sqrt(below[gap] * above[gap]))
