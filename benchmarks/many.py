"""Compare allreduce_many on a list of arrays, such as gradients, with a loop, and with the MPI.

    gradred run -np 2 python benchmarks/many.py --json out.json

For each list of arrays these variants run in alternating blocks:

- `allreduce_many(xs, out=ys)`;
- a loop of gradred's `comm.Allreduce(x, y)`;
- the same loop of the MPI's;
- a copy of the arrays into one vector, which the MPI reduces, and a copy back.

Every result is checked.

The JSON record (`schema` = "gradred-many/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag      {what, us}: the time of one signal between ranks 0 and 1
    rows      [{list, arrays, bytes, calls, ways{name: {us, rounds_us[rounds]}},
                ratios{name: {ratio, ratio_p10, ratio_p90}}}]; ratio is this variant's time divided
                by that of allreduce_many
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from timeit import Timer
from typing import Any

import numpy as np
import numpy.typing as npt
from arguments import options, parse_once, read
from blocks import block_length, interleave, microseconds
from models import resnet50
from mpi4py import MPI

import gradred
from gradred.bench.machine import describe, mpi_name, one_way_latency
from gradred.bench.rank_zero import say, write_json
from gradred.bench.timing import ratio

SCHEMA = "gradred-many/1"
Vector = npt.NDArray[np.float32]


LISTS: dict[str, list[int]] = {
    "161 of 1 KiB": [256] * 161,
    "1,000 of 100 B": [25] * 1000,
    "ResNet-50": resnet50(),
    "161 of 619 KiB": [158_385] * 161,
}


def ways(comm: gradred.Comm, xs: list[Vector], ys: list[Vector]) -> dict[str, Callable[[], None]]:
    """Return the variants; each writes the sums of `xs` over the ranks into `ys`."""
    mpi = comm.Dup()
    vector = np.empty(sum(x.size for x in xs), np.float32)
    bounds = np.cumsum([0, *(x.size for x in xs)])
    parts = [vector[begin:end] for begin, end in pairwise(bounds)]
    of_mpi = MPI.Intracomm.Allreduce

    def many() -> None:
        gradred.allreduce_many(xs, out=ys, comm=comm)

    def loop() -> None:
        for x, y in zip(xs, ys, strict=True):
            comm.Allreduce(x, y)

    def loop_of_mpi() -> None:
        for x, y in zip(xs, ys, strict=True):
            of_mpi(mpi, x, y)

    def packed() -> None:
        for x, part in zip(xs, parts, strict=True):
            part[:] = x
        of_mpi(mpi, MPI.IN_PLACE, vector)
        for y, part in zip(ys, parts, strict=True):
            y[:] = part

    return {
        "allreduce_many": many,
        "loop of gradred": loop,
        "loop of the MPI": loop_of_mpi,
        "packed in NumPy, by the MPI": packed,
    }


def measure(comm: gradred.Comm, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows; collective on `comm`."""
    for name, sizes in LISTS.items():
        xs = [np.full(size, comm.rank + 1 + i % 7, np.float32) for i, size in enumerate(sizes)]
        ys = [np.empty_like(x) for x in xs]
        made = ways(comm, xs, ys)
        for way, call in made.items():
            call()
            for i, y in enumerate(ys):
                if (y != sum(rank + 1 + i % 7 for rank in range(comm.size))).any():
                    raise AssertionError(f"{way}: array {i} of {name} is wrong")
                y[:] = 0
        timers = [Timer(call) for call in made.values()]
        each = given.seconds / len(LISTS) / len(made) / given.rounds
        block = min(block_length(timer, each, comm) for timer in timers)
        times = interleave(timers, given.rounds, block, comm)
        row: dict[str, Any] = {"list": name, "arrays": len(sizes), "bytes": 4 * sum(sizes)}
        row |= {"calls": block, "ways": {}, "ratios": {}}
        for i, way in enumerate(made):
            row["ways"][way] = {
                "us": microseconds(times[:, i]),
                "rounds_us": (times[:, i] * 1e6).tolist(),
            }
            middle, low, high = ratio(times[:, i], times[:, 0])
            row["ratios"][way] = {"ratio": middle, "ratio_p10": low, "ratio_p90": high}
        yield row


def arguments() -> argparse.Namespace:
    return read(options("several arrays in one call", rounds=25, seconds=30.0))


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    comm = gradred.Comm(world.Dup())
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["flag"] = one_way_latency(world)
    record["rows"] = rows = []
    say(world, f"# lists of arrays, {world.size} ranks, {mpi_name()}; us per list, medians")
    for row in measure(comm, given):
        rows.append(row)
        say(world, f"{row['list']}: {row['bytes']} bytes")
        for way, found in row["ways"].items():
            one = row["ratios"][way]
            spread = f"({one['ratio_p10']:.2f}-{one['ratio_p90']:.2f})"
            say(world, f"  {way:30}{found['us']:12.1f}  {one['ratio']:.2f} {spread}")
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
