"""Compare the plans of a long allreduce on one host, and the MPI's, in one run.

    gradred run -np 2 python benchmarks/single_copy.py --json out.json

These variants ("way" in the record) run in alternating blocks, after their results were checked:

- own: arrays of `gradred.empty`, which peers read directly;
- numpy: NumPy arrays, which the kernel reads for peers (if rank 0 measures that this is faster);
- chunks: the same on a communicator without that plan (`GRADRED_SINGLE_COPY=0`);
- mpi: the same by the MPI's own Allreduce.

Each runs out of place, in place, and in place after `x.fill(1)`. The time of the fill counts: a
program writes what it reduces, and cache lines that another core has read cost more to write. The
fastest variant depends on the placement of the ranks' cores, so each row has the one-way latency
between ranks 0 and 1.

The JSON record (`schema` = "gradred-single-copy/2"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    rows  [{bytes, use, calls, flag_us, us{way}, to_mpi{way: ratio}, rounds_us{way: [...]}}];
          ratios are the MPI's time divided by the variant's
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
from gradred import _core, config
from gradred.bench.machine import describe
from gradred.bench.rank_zero import say, write_json
from gradred.bench.timing import ratio

SCHEMA = "gradred-single-copy/2"
KIB = 1 << 10
WAYS = {"own": "may", "numpy": "may", "chunks": "may_not", "mpi": "plain"}  # their communicators
USES = {
    "out of place": "{comm}.Allreduce({x}, {y})",
    "in place": "{comm}.Allreduce(MPI.IN_PLACE, {x})",
    "written, in place": "{x}.fill(1); {comm}.Allreduce(MPI.IN_PLACE, {x})",
}


def arguments() -> argparse.Namespace:
    sizes = [size * KIB for size in (256, 1024, 4096, 16384, 65536)]
    return read(options("ways of a long allreduce", rounds=15, seconds=40.0, sizes=sizes))


def made(world: MPI.Intracomm, single_copy: bool) -> gradred.Comm:
    """Make a communicator that has been set up with this value of the setting."""
    config.set("single_copy", single_copy)
    comm = gradred.Comm(world.Dup())
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    return comm


def statements(use: str) -> dict[str, str]:
    """Return the statement of each variant."""
    return {
        way: USES[use].format(
            comm=comm, x="own_x" if way == "own" else "x", y="own_y" if way == "own" else "y"
        )
        for way, comm in WAYS.items()
    }


def check(use: str, names: dict[str, Any], world: MPI.Intracomm) -> None:
    """Exit if a variant's result is wrong; also makes rank 0 try all plans that it chooses from."""
    numbers = world.rank + np.arange(len(names["x"])) % 7
    expected = sum(range(world.size)) + world.size * (np.arange(len(names["x"])) % 7)
    for way, statement in [*statements(use).items()] * 9:
        x, y = (names["own_" * (way == "own") + one] for one in "xy")
        x[:] = numbers
        y.fill(-1)
        Timer(
            statement.removeprefix("own_x.fill(1); ").removeprefix("x.fill(1); "), globals=names
        ).timeit(1)
        result = y if use == "out of place" else x
        if not world.allreduce(bool((result == expected).all()), MPI.LAND):
            raise SystemExit(f"{way}, {use}: wrong result at {x.nbytes} bytes")


def rows(given: argparse.Namespace, world: MPI.Intracomm) -> Iterator[dict[str, Any]]:
    """Yield a row for each size and use; collective on `world`."""
    may, may_not = made(world, True), made(world, False)
    each = given.seconds / len(given.sizes) / len(USES) / given.rounds / len(WAYS)
    for nbytes in given.sizes:
        count = nbytes // 4
        names = {"MPI": MPI, "may": may, "may_not": may_not, "plain": world}
        names |= {name: np.zeros(count, np.float32) for name in "xy"}
        names |= {f"own_{name}": gradred.zeros(count) for name in "xy"}
        for use in USES:
            check(use, names, world)
            for name in ("x", "y", "own_x", "own_y"):
                names[name].fill(0)
            timers = [Timer(statement, globals=names) for statement in statements(use).values()]
            block = min(block_length(timer, each, world) for timer in timers)
            flag = _core.one_way_latency(may_not, 200)
            times = interleave(timers, given.rounds, block, world)
            by_way = dict(zip(WAYS, times.T, strict=True))
            yield {
                "bytes": nbytes,
                "use": use,
                "calls": block,
                "flag_us": round(1e6 * flag, 3),
                "us": {way: microseconds(one) for way, one in by_way.items()},
                "to_mpi": {way: ratio(by_way["mpi"], one) for way, one in by_way.items()},
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
        where = f"{row['bytes'] / KIB:6.0f} KiB, flag {row['flag_us']:.3f} us"
        say(world, f"{where}, {row['use']:18} {found} us")
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
