"""Synchronous and asynchronous workers in simulated time: real gradients, simulated clocks.

Every worker computes gradients of the network of `gradred schemes` on real images. When it begins
and ends, and so which parameters it reads, is simulated; a server is `gradred.schemes.store.Store`.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from gradred.compression import Floats
from gradred.schemes.store import Sgd, Store
from gradred_lab.schemes import workload

LAYERS = (128,)  # widths inside
BATCH = 32  # images of a worker
LOSS = 0.2  # the goal
_MOST = 4000  # iterations that are tried
_EVERY = 5  # iterations between two looks at the loss


@dataclass(frozen=True)
class Workers:
    """How many, how their times differ, and how they step.

    `spread` is the deviation of the logarithm of the time of each gradient; `late` is how many
    times as long the last worker takes.
    """

    count: int
    rate: float
    momentum: float = 0.0
    spread: float = 0.3
    late: float = 1.0
    staleness: float = math.inf
    together: bool = False
    seed: int = 1


@dataclass(frozen=True)
class Reached:
    """Iterations (one gradient of each worker on average) and simulated seconds to the loss.

    A second is the mean time of a gradient. Iterations are infinite if the loss is never reached.
    """

    iterations: float
    seconds: float


def run(workers: Workers, loss: float = LOSS) -> Reached:
    """Train until the loss of all training images is below the goal."""
    job = _Job(workers)
    for puts in range(1, _MOST * workers.count + 1):
        job.step()
        if puts % (_EVERY * workers.count) == 0 and job.loss() < loss:
            return Reached(puts / workers.count, job.now)
    return Reached(math.inf, math.inf)


class _Job:
    """The workers, each with the parameters that it read last, and the server."""

    def __init__(self, workers: Workers) -> None:
        data = workload.load("digits")
        self._x, self._y = data.x[: data.training], data.y[: data.training]
        self._workers = workers
        self._drawn = np.random.default_rng(workers.seed)
        layers = (self._x.shape[1], *LAYERS, data.classes)
        self._start = workload.initial(layers, workers.seed)
        ranks = range(workers.count)
        rule = Sgd(workers.rate, workers.momentum)
        self._store = Store(ranks, rule, workers.staleness, together=workers.together)
        for tensor, weights in enumerate(self._start):
            self._store.create(tensor, weights.ravel().copy())
        self._batches = workload.Batches(len(self._x), BATCH * workers.count, workers.seed)
        self._read = {one: [weights.copy() for weights in self._start] for one in ranks}
        self._ends = [(self._duration(one), one, 0) for one in ranks]  # of gradients
        heapq.heapify(self._ends)
        self._waiting: list[tuple[int, int]] = []  # workers and their steps
        self.now = 0.0

    def step(self) -> None:
        """The next gradient that is ready goes to the server, and workers that may go on do."""
        self.now, worker, clock = heapq.heappop(self._ends)
        rows = self._batches.of(clock)[worker * BATCH : (worker + 1) * BATCH]
        gradients = [np.empty_like(weights) for weights in self._start]
        network = workload.NumpyNetwork(self._read[worker], gradients)
        network.backward(self._x[rows], self._y[rows])
        for tensor, gradient in enumerate(gradients):
            self._store.put(tensor, worker, clock, gradient.ravel())
        self._waiting.append((worker, clock))
        self._waiting = [one for one in self._waiting if not self._goes_on(*one)]

    def loss(self) -> float:
        """Of all training images, by the parameters of the server."""
        weights = [self._value(tensor, 0) for tensor in range(len(self._start))]
        assert all(one is not None for one in weights)
        return workload.evaluate([w for w in weights if w is not None], self._x, self._y)[0]

    def _goes_on(self, worker: int, clock: int) -> bool:
        fresh = [self._value(tensor, clock + 1) for tensor in range(len(self._start))]
        if any(one is None for one in fresh):
            return False
        self._read[worker] = [one.copy() for one in fresh if one is not None]
        heapq.heappush(self._ends, (self.now + self._duration(worker), worker, clock + 1))
        return True

    def _value(self, tensor: int, clock: int) -> Floats | None:
        found = self._store.get(tensor, clock)
        return None if found is None else found[1].reshape(self._start[tensor].shape)

    def _duration(self, worker: int) -> float:
        factor = self._workers.late if worker == self._workers.count - 1 else 1.0
        spread = self._workers.spread
        return factor * math.exp(spread * self._drawn.standard_normal() - spread**2 / 2)
