"""Whether training was right: all ranks have the same parameters, and all peers agree."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from gradred.train.framework import Peer, Vector

LIMITS = {"fp32": 1e-3, "bf16": 3e-2}
"""By precision: how far the parameters of two peers may be apart, and those of two ranks unless
gradred reduced, relative to how far training has moved them. Peers add in different orders, and
steps multiply the differences of rounding."""


class Checker:
    """Compares the parameters at the end of each peer's steps, in all repeats of a cell.

    They all begin with the same parameters, data and random numbers. So all are compared with those
    of the first peer whose ranks agree.

    Args:
        world: of all ranks.
        first: the parameters before the first step.
        precision: a key of `LIMITS`.
    """

    def __init__(self, world: Any, first: Vector, precision: str) -> None:
        self._world, self._first, self._limit = world, first, LIMITS[precision]
        self._reference: Vector | None = None

    def check(self, peer: Peer, vector: Vector) -> dict[str, Any]:
        """Compare one peer's parameters with other ranks' and other peers'. Collective.

        Args:
            peer: whose ranks all exchange.
            vector: this rank's parameters.

        Returns:
            `rank_difference` (0: the same bits), `difference` from the first peer, both relative to
            the way from the first parameters, None if there is no such number; and `right`. The
            same on all ranks.
        """
        ranks = self._between_ranks(vector)
        agree = ranks <= (0.0 if peer.by_gradred else self._limit)  # with NaN: False
        apart = 0.0
        if self._world.rank == 0:
            if self._reference is None and agree:
                self._reference = vector
            known = vector if self._reference is None else self._reference
            apart = self._relative(vector, known)
        apart = self._world.bcast(apart)
        right = agree and apart <= self._limit
        return {"rank_difference": _plain(ranks), "difference": _plain(apart), "right": right}

    def _between_ranks(self, vector: Vector) -> float:
        digest = hashlib.sha256(vector.data).hexdigest()
        if len(set(self._world.allgather(digest))) == 1:
            finite = bool(np.isfinite(vector).all())
            return 0.0 if finite else float("nan")
        of_rank_0 = np.array(vector)
        self._world.Bcast(of_rank_0, 0)
        return float(max(self._world.allgather(self._relative(vector, of_rank_0))))

    def _relative(self, vector: Vector, other: Vector) -> float:
        moved = float(np.linalg.norm(other - self._first))
        apart = float(np.linalg.norm(vector - other))
        return apart / moved if moved > 0 else float("nan")


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
