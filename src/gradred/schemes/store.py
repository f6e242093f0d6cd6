"""The parameters of one server, by name, with versions: who may read them when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gradred.compression import Floats
from gradred.errors import UsageError

FINISHED = math.inf
"""The clock of a worker that makes no more steps."""


@dataclass(frozen=True)
class Sgd:
    """Gradient descent with momentum: v = momentum v + gradient; weights -= rate v."""

    rate: float
    momentum: float = 0.0

    def update(self, weights: Floats, gradient: Floats, velocity: Floats) -> None:
        """Make a step in place: `weights` and `velocity` change."""
        if self.momentum:
            velocity *= np.float32(self.momentum)
            velocity += gradient
            gradient = velocity
        weights -= np.float32(self.rate) * gradient


@dataclass
class _Parameter:
    weights: Floats
    velocity: Floats
    clocks: dict[int, float]
    """The steps of each worker that the weights contain."""
    version: int = 0
    waiting: dict[int, dict[int, Floats]] = field(default_factory=dict)
    """Gradients by step and worker that wait for those of the other workers."""


class Store:
    """Named parameters. `put` adds a worker's gradient, `get` reads if the value is fresh enough.

    A worker that has made c steps may read values that contain at least c - staleness steps of each
    worker (stale-synchronous: Ho et al., 2013). Gradients count 1/p for p workers.

    Args:
        workers: their ranks.
        rule: what a gradient does to parameters.
        staleness: 0, a number of steps, or infinity for no bound.
        together: the gradients of one step become one update when all have come, added in the
            order of ranks; else each becomes an update when it comes.
    """

    def __init__(
        self, workers: Sequence[int], rule: Sgd, staleness: float, *, together: bool
    ) -> None:
        self._workers, self._rule = list(workers), rule
        self._staleness, self._together = staleness, together
        self._parameters: dict[int, _Parameter] = {}

    def create(self, name: int, weights: Floats) -> None:
        """Add a parameter; the store owns `weights`."""
        clocks: dict[int, float] = dict.fromkeys(self._workers, 0)
        self._parameters[name] = _Parameter(weights, np.zeros_like(weights), clocks)

    def put(self, name: int, worker: int, clock: int, gradient: Floats) -> bool:
        """Add the gradient of a worker's step; returns whether the parameter has changed."""
        parameter = self._parameters[name]
        if not self._together:
            self._apply(parameter, gradient / np.float32(len(self._workers)))
            parameter.clocks[worker] = clock + 1
            return True
        if FINISHED in parameter.clocks.values():
            raise _unequal_steps()
        gradients = parameter.waiting.setdefault(clock, {})
        gradients[worker] = gradient
        if len(gradients) < len(self._workers):
            return False
        del parameter.waiting[clock]
        total = mean_of([gradients[one] for one in self._workers])
        self._apply(parameter, total)
        parameter.clocks = dict.fromkeys(self._workers, clock + 1)
        return True

    def get(self, name: int, clock: int) -> tuple[int, Floats] | None:
        """Return version and weights for a worker that has made `clock` steps.

        None: the weights are not fresh enough yet. They change with the next `put`.
        """
        parameter = self._parameters[name]
        if min(parameter.clocks.values()) < clock - self._staleness:
            return None
        return parameter.version, parameter.weights

    def finish(self, worker: int) -> None:
        """Note that a worker makes no more steps, so that nobody waits for it.

        Raises:
            UsageError: others make more steps, and all gradients of a step are to come together.
        """
        for parameter in self._parameters.values():
            if parameter.waiting:
                raise _unequal_steps()
            parameter.clocks[worker] = FINISHED

    def _apply(self, parameter: _Parameter, gradient: Floats) -> None:
        self._rule.update(parameter.weights, gradient, parameter.velocity)
        parameter.version += 1


def _unequal_steps() -> UsageError:
    found = "a worker has made its last step, and others make more"
    remedy = "Let all workers make the same number of steps, or take another scheme"
    return UsageError("a synchronous parameter server", found, remedy)


def mean_of(arrays: Sequence[Floats]) -> Floats:
    """Return the mean of arrays, a new one, added in their order; so it is the same everywhere."""
    total: Floats = np.add(arrays[0], arrays[1]) if len(arrays) > 1 else arrays[0].copy()
    for array in arrays[2:]:
        total += array
    total /= np.float32(len(arrays))
    return total
