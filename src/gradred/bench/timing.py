"""Time statements or calls against each other, in alternating order."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from timeit import Timer
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


def agree(value: float, comm: MPI.Intracomm) -> float:
    """Return the largest of the ranks' values, so that all ranks decide alike; collective."""
    return float(comm.allreduce(value, MPI.MAX))


def block_length(timer: Timer, seconds: float, comm: MPI.Intracomm, *, most: int = 100_000) -> int:
    """Return the calls that fill about `seconds`, at least one; the same on all ranks of `comm`."""
    calls, taken = 1, 0.0
    while calls < most:
        comm.Barrier()
        taken = agree(timer.timeit(calls), comm)
        if taken > seconds / 10:
            break
        calls *= 4
    return max(1, min(most, int(calls * seconds / max(taken, 1e-9))))


def interleave(
    timers: Sequence[Timer],
    rounds: int,
    block: int,
    comm: MPI.Intracomm,
    before: Callable[[], object] | None = None,
) -> Seconds:
    """Time statements against each other, block by block, in alternating order.

    Each round runs one block of every statement; every second round runs them in reverse order. A
    barrier of `comm` precedes each block. `before` is called before each round, on every rank.

    Returns:
        Seconds per call, (rounds, statements): the mean of a block on the slowest rank.
    """
    order = list(range(len(timers)))
    means = np.empty((rounds, len(timers)))
    for row in means:
        if before is not None:
            before()
        for index in order:
            comm.Barrier()
            row[index] = timers[index].timeit(block) / block
        order.reverse()
    comm.Allreduce(MPI.IN_PLACE, means, MPI.MAX)
    return means


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


def microseconds(seconds: Seconds) -> float:
    """Return the median over the rounds, in microseconds."""
    return float(np.median(seconds) * 1e6)
