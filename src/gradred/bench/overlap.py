"""How much of a non-blocking operation overlaps with computation, as osu_iallreduce measures it.

The first measurement starts the operation and waits for it. The second starts it, computes for the
same time, and then waits. The time by which the second exceeds the computation was not overlapped:

    overlap = 100 - 100 (overall - (compute - test)) / pure      (0 at least)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from gradred.bench.contenders import Calls, Started
from gradred.bench.timing import Seconds, no_garbage_collection

PARTS = ("overall", "compute", "init", "test", "wait")
_SIDE = 25  # rows of the matrix in the computation, as in the OSU benchmarks


class Overlapped(NamedTuple):
    """The mean seconds of one contender on one rank."""

    overall: float
    compute: float
    """Seconds of the computation, without the tests in between."""
    init: float
    test: float
    wait: float


def overlap(pure: float, overall: float, compute: float) -> float:
    """Return the per cent of the operation's time that overlapped with the computation."""
    return max(0.0, 100 - 100 * (overall - compute) / pure)


class Computation:
    """A computation of a given duration on the core of this rank."""

    def __init__(self) -> None:
        self._matrix = np.full((_SIDE, _SIDE), 1 / _SIDE, "float32")
        self._x, self._y = (np.ones(_SIDE, "float32") for _ in range(2))

    def run(self, seconds: float) -> None:
        """Compute until `seconds` have passed."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            np.dot(self._matrix, self._x, out=self._y)
            self._x, self._y = self._y, self._x

    def run_and_test(self, seconds: float, tests: int, request: Started) -> float:
        """Compute for `seconds`, with so many calls of Test; returns the seconds of the tests."""
        spent = 0.0
        for _ in range(tests):
            self.run(seconds / (tests + 1))
            begin = time.perf_counter()
            request.Test()
            spent += time.perf_counter() - begin
        self.run(seconds / (tests + 1))
        return spent


def measure(
    calls: Sequence[Calls], pure: Seconds, tests: int, iterations: int, comm: MPI.Intracomm
) -> list[Overlapped]:
    """Time each contender with a computation that lasts as long as its operation on this rank.

    Args:
        calls: the contenders; timed call by call, in alternating order.
        pure: this rank's times without a computation, (iterations, contenders).
        tests: calls of Test during the computation.
        iterations: timed calls of each.
        comm: the communicator of the barrier before each call; collective.
    """
    lengths = pure.mean(axis=0)
    parts = np.empty((iterations, len(calls), len(PARTS)))
    order, computation = list(range(len(calls))), Computation()
    with no_garbage_collection():
        for row in parts:
            for index in order:
                comm.Barrier()
                _one(calls[index], float(lengths[index]), tests, computation, row[index])
            order.reverse()
    return [Overlapped(*map(float, means)) for means in parts.mean(axis=0)]


def _one(
    calls: Calls, seconds: float, tests: int, computation: Computation, row: NDArray[np.float64]
) -> None:
    assert calls.start is not None
    clock = time.perf_counter
    begin = clock()
    request = calls.start()
    started = clock()
    tested = computation.run_and_test(seconds, tests, request)
    computed = clock()
    request.Wait()
    end = clock()
    row[:] = end - begin, computed - started - tested, started - begin, tested, end - computed
