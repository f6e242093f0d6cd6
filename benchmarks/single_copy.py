"""Compare the two ways of a long allreduce on one host, and the MPI's, in one run.

    gradred run -np 2 python benchmarks/single_copy.py --json out.json

In turn, block by block, on the same buffers, results checked first: a communicator that may read
peers' memory (`GRADRED_SINGLE_COPY=1`, the default: rank 0 measures and chooses), one that may not,
and the MPI's own. Which way is the faster one depends on where the cores of the ranks are, so the
one-way latency between ranks 0 and 1 stands beside each row.

The JSON record (`schema` = "gradred-single-copy/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    rows  [{bytes, calls, flag_us, us{way}, to_chunks, to_mpi{way: ratio},
            rounds_us{way: [...]}}]; ratios are of the other's time over the way's
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from timeit import Timer
from typing import Any

import numpy as np
from mpi4py import MPI

import gradred
from gradred import _core, config
from gradred.bench.machine import describe
from gradred.bench.rank_zero import parse_once, say, write_json
from gradred.bench.timing import block_length, interleave, microseconds, ratio

SCHEMA = "gradred-single-copy/1"
MIB = 1 << 20
WAYS = {"may read": "may.Allreduce(x, y)", "chunks": "may_not.Allreduce(x, y)"}
OF_MPI = {"mpi": "plain.Allreduce(x, y)"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ways of a long allreduce")
    sizes = [MIB, 2 * MIB, 3 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 64 * MIB]
    parser.add_argument("--sizes", nargs="+", type=int, metavar="BYTES", default=sizes)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20.0, help="in all, about")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.rounds < 3 or given.seconds <= 0:
        parser.error("needs --rounds of 3 or more and --seconds above 0")
    return given


def made(world: MPI.Intracomm, single_copy: bool) -> gradred.Comm:
    """A communicator that has been set up with the knob like this."""
    config.set("single_copy", single_copy)
    comm = gradred.Comm(world.Dup())
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    return comm


def check(names: dict[str, Any], world: MPI.Intracomm) -> None:
    """Stop where a way's result is wrong; also makes rank 0 try both."""
    names["x"][:] = world.rank + np.arange(len(names["x"])) % 7
    expected = sum(range(world.size)) + world.size * (np.arange(len(names["x"])) % 7)
    for way, statement in [*WAYS.items()] * 6 + [*OF_MPI.items()]:
        names["y"].fill(-1)
        Timer(statement, globals=names).timeit(1)
        if not world.allreduce(bool((names["y"] == expected).all()), MPI.LAND):
            raise SystemExit(f"{way}: wrong result at {names['x'].nbytes} bytes")


def rows(given: argparse.Namespace, world: MPI.Intracomm) -> Iterator[dict[str, Any]]:
    """One for each size; collective on `world`."""
    may, may_not = made(world, True), made(world, False)
    each = given.seconds / len(given.sizes) / given.rounds / 3
    for nbytes in given.sizes:
        x = np.ones(nbytes // 4, np.float32)
        names = {"x": x, "y": np.empty_like(x), "may": may, "may_not": may_not, "plain": world}
        check(names, world)
        timers = [Timer(statement, globals=names) for statement in (WAYS | OF_MPI).values()]
        block = min(block_length(timer, each, world) for timer in timers)
        flag = _core.one_way_latency(may_not, 200)
        times = interleave(timers, given.rounds, block, world)
        by_way = dict(zip(WAYS | OF_MPI, times.T, strict=True))
        yield {
            "bytes": nbytes,
            "calls": block,
            "flag_us": round(1e6 * flag, 3),
            "us": {way: microseconds(one) for way, one in by_way.items()},
            "to_chunks": ratio(by_way["chunks"], by_way["may read"]),
            "to_mpi": {way: ratio(by_way["mpi"], by_way[way]) for way in WAYS},
            "rounds_us": {way: (one * 1e6).tolist() for way, one in by_way.items()},
        }


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["rows"] = []
    for row in rows(given, world):
        record["rows"].append(row)
        found = "  ".join(f"{way} {us:.0f}" for way, us in row["us"].items())
        say(world, f"{row['bytes'] / MIB:4.0f} MiB, flag {row['flag_us']:.3f} us:  {found} us")
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
