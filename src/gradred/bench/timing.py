"""Time calls against each other, in alternating order."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


def call_by_call(
    calls: Sequence[Callable[[], object]], iterations: int, comm: MPI.Intracomm
) -> Seconds:
    """Time calls against each other, one by one, in alternating order.

    As in the OSU benchmarks, a barrier of `comm` precedes each call, and each call is timed alone.
    The time includes one reading of the clock (`clock_cost`).

    Returns:
        This rank's seconds, (iterations, calls).
    """
    order = list(range(len(calls)))
    seconds = np.empty((iterations, len(calls)))
    clock = time.perf_counter
    with no_garbage_collection():
        for row in seconds:
            for index in order:
                call = calls[index]
                comm.Barrier()
                begin = clock()
                call()
                row[index] = clock() - begin
            order.reverse()
    return seconds


class no_garbage_collection:  # noqa: N801 (used like a function)
    """A context in which Python's garbage collector does not run."""

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_on:
            gc.enable()


def clock_cost(readings: int = 1000) -> float:
    """Return the seconds that one reading of the clock takes."""
    clock = time.perf_counter
    begin = clock()
    for _ in range(readings):
        clock()
    return (clock() - begin) / readings


class Ratio(NamedTuple):
    """The ratio of two statements' times: median, 10th and 90th percentile over the rounds."""

    median: float
    p10: float
    p90: float


def ratio(over: Seconds, under: Seconds) -> Ratio:
    """Compare round by round, so that effects that slow a whole round cancel out."""
    p10, median, p90 = np.percentile(over / under, [10, 50, 90])
    return Ratio(float(median), float(p10), float(p90))
