"""Whether training was right: all ranks have the same parameters, and all peers agree."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from gradred_lab.train.framework import Peer, Trial, Vector

LIMITS = {"fp32": 1e-4, "bf16": 1e-2}
"""How far the parameters of two peers may be apart after one step, by precision.

The distance is relative to how far the parameters have moved. Peers add in different orders. The
limits also hold for two ranks of a peer, unless gradred reduced: then the ranks must be equal."""


class Checker:
    """Checks each peer at the end of its steps, in all repeats of a cell.

    Further training multiplies differences of rounding, in networks with batch normalisation by
    thousands in some steps. So the trial goes back to the first parameters and makes one step more.
    All trials begin with the same parameters, data and random numbers; therefore all must come to
    the parameters of the first peer whose ranks agree.

    Args:
        world: of all ranks.
        first: the parameters before the first step.
        precision: a key of `LIMITS`.
    """

    def __init__(self, world: Any, first: Vector, precision: str) -> None:
        self._world, self._first, self._limit = world, first, LIMITS[precision]
        self._trained: Vector | None = None
        self._stepped: Vector | None = None

    def check(self, peer: Peer, trial: Trial) -> dict[str, Any]:
        """Check one peer, whose ranks all exchange. Collective.

        Args:
            peer: a row of the table.
            trial: at the end of its steps.

        Returns:
            `rank_difference` between ranks (0: the same bits); `drift` and `difference` from the
            first peer, after all steps and after one; all relative to the way from the first
            parameters, None if there is no such number; and `right`, of ranks and `difference`.
        """
        trained = trial.parameters()
        trial.rewind()
        trial.step()
        stepped = trial.parameters()
        ranks = max(self._between_ranks(trained), self._between_ranks(stepped))
        agree = ranks <= (0.0 if peer.by_gradred else self._limit)
        if self._trained is None and agree:
            self._trained, self._stepped = trained, stepped
        drift = self._from(self._trained, trained)
        difference = self._from(self._stepped, stepped)
        right = agree and difference <= self._limit
        found = {"rank_difference": ranks, "difference": difference, "drift": drift}
        plain = {name: one if math.isfinite(one) else None for name, one in found.items()}
        return {**plain, "right": right}

    def _between_ranks(self, vector: Vector) -> float:
        digest = hashlib.sha256(vector.data).hexdigest()
        if len(set(self._world.allgather(digest))) == 1:
            return 0.0 if np.isfinite(vector).all() else math.inf
        of_rank_0 = np.array(vector)
        self._world.Bcast(of_rank_0, 0)
        return float(max(self._world.allgather(self._relative(vector, of_rank_0))))

    def _from(self, known: Vector | None, vector: Vector) -> float:
        """How far rank 0's vector is from the one that is known; the same on all ranks."""
        is_known = known is not None and self._world.rank == 0
        apart = self._relative(vector, known) if known is not None and is_known else 0.0
        return float(self._world.bcast(apart))

    def _relative(self, vector: Vector, other: Vector) -> float:
        moved = float(np.linalg.norm(other - self._first))
        apart = float(np.linalg.norm(vector - other))
        found = apart / moved if moved > 0 else math.inf
        return found if math.isfinite(found) else math.inf
