"""Compare long broadcasts and allgathers on one host with the copies that they cannot do without.

    gradred run -np 2 python benchmarks/copy_bound.py --json out.json

Each reader of a broadcast must copy the root's bytes once, each rank of an allgather those of all
peers. These ways run in alternating blocks, after their results were checked:

- bound: those copies alone, and that of an allgather's own part, by NumPy's `copyto` from memory
  that the ranks share into an array of `gradred.empty`, all ranks at once, no waiting;
- own: `gradred.Comm` with arrays of `gradred.empty`, which peers read directly;
- numpy: the same with NumPy arrays;
- mpi: the MPI's own method with NumPy arrays.

The JSON record (`schema` = "gradred-copy-bound/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    rows  [{call, bytes, calls, us{way}, of_bound{way: ratio}, rounds_us{way: [...]}}];
          `bytes` are those of one rank's part, ratios the bound's time divided by the way's
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from timeit import Timer
from typing import Any

import numpy as np
from arguments import options, parse_once, read
from blocks import block_length, interleave, microseconds
from mpi4py import MPI

import gradred
from gradred.bench.machine import describe
from gradred.bench.rank_zero import say, write_json
from gradred.bench.timing import ratio

SCHEMA = "gradred-copy-bound/1"
KIB = 1 << 10
# What each way calls, with names of Cell.names.
CALLS = {
    "Bcast": {
        "bound": "readers_copy()",
        "own": "ours.Bcast(own_result[:count])",
        "numpy": "ours.Bcast(result[:count])",
        "mpi": "world.Bcast(result[:count])",
    },
    "Allgather": {
        "bound": "all_copy()",
        "own": "ours.Allgather(own_part, own_result)",
        "numpy": "ours.Allgather(part, result)",
        "mpi": "world.Allgather(part, result)",
    },
}


def arguments() -> argparse.Namespace:
    sizes = [size * KIB for size in (256, 1024, 2048, 8192)]
    return read(options("long copies and their bound", rounds=15, seconds=40.0, sizes=sizes))


class Arrays:
    """The arrays of one length: each rank's part and the results, also in memory of gradred."""

    def __init__(self, nbytes: int, world: MPI.Intracomm, ours: gradred.Comm) -> None:
        self.rank, self.size, self.count = world.rank, world.size, nbytes // 4
        self.window = MPI.Win.Allocate_shared(nbytes, 4, comm=world)
        self.parts = [
            np.frombuffer(self.window.Shared_query(rank)[0], np.float32)
            for rank in range(world.size)
        ]
        self.result = np.zeros(self.count * world.size, np.float32)
        self.own_result = gradred.zeros(self.count * world.size)
        self.part, self.own_part = np.empty(self.count, np.float32), gradred.empty(self.count)
        for one in (self.part, self.own_part, self.parts[self.rank]):
            one[:] = self.rank + np.arange(self.count) % 7
        self.names = {
            **{"world": world, "ours": ours, "count": self.count},
            **{"result": self.result, "own_result": self.own_result},
            **{"part": self.part, "own_part": self.own_part},
            **{"readers_copy": self.readers_copy, "all_copy": self.all_copy},
        }

    def copy(self, rank: int) -> None:
        begin = rank * self.count
        np.copyto(self.own_result[begin : begin + self.count], self.parts[rank])

    def readers_copy(self) -> None:
        if self.rank != 0:
            self.copy(0)

    def all_copy(self) -> None:
        for step in range(self.size):
            self.copy((self.rank + step) % self.size)

    def check(self, call: str, way: str) -> bool:
        """Run a way once; whether its result is right."""
        result = self.own_result if way in ("own", "bound") else self.result
        result[:] = -1
        if call == "Bcast" and self.rank == 0:
            result[: self.count] = np.arange(self.count) % 7
        Timer(CALLS[call][way], globals=self.names).timeit(1)
        ranks = range(self.size if call == "Allgather" else 1)
        expected = [rank + np.arange(self.count) % 7 for rank in ranks]
        return bool((result[: self.count * len(ranks)] == np.concatenate(expected)).all())


def rows(
    given: argparse.Namespace, world: MPI.Intracomm, ours: gradred.Comm
) -> Iterator[dict[str, Any]]:
    """Yield a row for each length and call; collective on `world`."""
    each = given.seconds / len(given.sizes) / len(CALLS) / given.rounds / 4
    for nbytes in given.sizes:
        arrays = Arrays(nbytes, world, ours)
        world.Barrier()
        for call, ways in CALLS.items():
            for way in [*ways] * 9:  # rank 0 also tries all plans that it chooses from
                if not world.allreduce(arrays.check(call, way), MPI.LAND):
                    raise SystemExit(f"{way}, {call}: wrong result at {nbytes} bytes")
            timers = [Timer(statement, globals=arrays.names) for statement in ways.values()]
            block = min(block_length(timer, each, world) for timer in timers)
            by_way = dict(zip(ways, interleave(timers, given.rounds, block, world).T, strict=True))
            yield {
                "call": call,
                "bytes": nbytes,
                "calls": block,
                "us": {way: microseconds(one) for way, one in by_way.items()},
                "of_bound": {way: ratio(by_way["bound"], one) for way, one in by_way.items()},
                "rounds_us": {way: (one * 1e6).tolist() for way, one in by_way.items()},
            }
        arrays.parts.clear()
        arrays.window.Free()


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    ours = gradred.Comm(world.Dup())
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["rows"] = []
    for row in rows(given, world, ours):
        record["rows"].append(row)
        found = "  ".join(f"{way} {us:.0f}" for way, us in row["us"].items())
        of = "  ".join(f"{way} {part.median:.2f}" for way, part in row["of_bound"].items())
        say(world, f"{row['call']:9} {row['bytes'] / KIB:6.0f} KiB  us: {found}  of bound: {of}")
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
