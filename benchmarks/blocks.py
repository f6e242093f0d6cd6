"""Time statements against each other block by block, in alternating order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from timeit import Timer

import numpy as np
from mpi4py import MPI

from gradred.bench.timing import Seconds


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


def microseconds(seconds: Seconds) -> float:
    """Return the median over the rounds, in microseconds."""
    return float(np.median(seconds) * 1e6)
