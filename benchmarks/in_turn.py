"""Times of several ways to do the same, measured in turn: what benchmarks of front ends share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from mpi4py import MPI


def measure(
    label: str,
    ways: Mapping[str, Callable[[], Any]],
    size: int,
    calls: int,
    rounds: int,
    comm: Any,
) -> dict[str, Any]:
    """Time each way in blocks of calls, on all ranks. Blocks.

    Each round measures all ways, and begins with another one than the round before. A block's time
    is that of the slowest rank.

    Args:
        label: name of the set of arrays, for the record.
        ways: what to call, by name.
        size: bytes of the arrays, for the record.
        calls: number of calls of one block.
        rounds: number of rounds.
        comm: communicator of the ranks, of the MPI or of gradred.

    Returns:
        A row of the record: microseconds of a call by way and round, and the medians.
    """
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds):
        first = turn % len(ways)
        for way in [*ways][first:] + [*ways][:first]:
            ways[way]()  # does not count: the way before has left the arrays in other caches
            comm.Barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                ways[way]()
            seconds = comm.allreduce(time.perf_counter() - begin, op=MPI.MAX)
            found[way].append(1e6 * seconds / calls)
    medians = {way: statistics.median(times) for way, times in found.items()}
    return {"set": label, "bytes": size, "calls": calls, "rounds_us": found, "us": medians}
