"""How much of a non-blocking operation overlaps with computation, as osu_iallreduce measures it.

The first measurement starts the operation and waits for it. The second starts it, computes for the
same time, and then waits. The time by which the second exceeds the computation was not overlapped:

    overlap = 100 - 100 (overall - (compute - test)) / pure      (0 at least)

This computation ends after a time, so it does not say whether the operation kept it from computing.
Its steps are counted, too. Where the operation's thread needs the computation's core, they say how
much was overlapped in truth: `worked` is the time that as many steps take with nothing in flight.
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

PARTS = ("overall", "compute", "init", "test", "wait", "worked")
_SIDE = 25  # rows of the matrix in the computation, as in the OSU benchmarks


class Overlapped(NamedTuple):
    """The mean seconds of one contender on one rank."""

    overall: float
    compute: float
    """Seconds of the computation, without the tests in between."""
    init: float
    test: float
    wait: float
    worked: float
    """Seconds that the steps of the computation take with nothing in flight."""


def overlap(pure: float, overall: float, compute: float) -> float:
    """Return the per cent of the operation's time that overlapped with the computation."""
    return max(0.0, 100 - 100 * (overall - compute) / pure)


class Computation:
    """A computation of a given duration on the core of this rank."""

    def __init__(self) -> None:
        self._matrix = np.full((_SIDE, _SIDE), 1 / _SIDE, "float32")
        self._x, self._y = (np.ones(_SIDE, "float32") for _ in range(2))
        self.steps = 0

    def run(self, seconds: float) -> None:
        """Compute until `seconds` have passed; counts the steps."""
        end = time.perf_counter() + seconds
        steps = 0
        while time.perf_counter() < end:
            np.dot(self._matrix, self._x, out=self._y)
            self._x, self._y = self._y, self._x
            steps += 1
        self.steps += steps

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
                seconds = float(lengths[index])
                comm.Barrier()
                step = _seconds_of_a_step(computation, seconds)
                comm.Barrier()
                _one(calls[index], seconds, tests, computation, row[index])
                row[index][-1] *= step
            order.reverse()
    return [Overlapped(*map(float, means)) for means in parts.mean(axis=0)]


def _seconds_of_a_step(computation: Computation, seconds: float) -> float:
    """Compute with nothing in flight, as the other ranks do at the same time."""
    before, begin = computation.steps, time.perf_counter()
    computation.run(seconds)
    return (time.perf_counter() - begin) / max(1, computation.steps - before)


def _one(
    calls: Calls, seconds: float, tests: int, computation: Computation, row: NDArray[np.float64]
) -> None:
    assert calls.start is not None
    clock = time.perf_counter
    before = computation.steps
    begin = clock()
    request = calls.start()
    started = clock()
    tested = computation.run_and_test(seconds, tests, request)
    computed = clock()
    request.Wait()
    end = clock()
    row[:] = (
        end - begin,
        computed - started - tested,
        started - begin,
        tested,
        end - computed,
        computation.steps - before,
    )
