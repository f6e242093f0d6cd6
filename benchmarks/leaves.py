"""Measure `Comm.Allreduce(..., leaves=)` against a plain Allreduce of sums that each rank makes.

    gradred run -np 2 python benchmarks/leaves.py --json out.json

Each rank has so many leaves, vectors of float32 of the lengths of the table. The plain way adds up
a rank's own leaves by NumPy, one after the other, and then calls Allreduce; its bits depend on the
split. Each round times all ways in turn; the ranks begin together, and the slowest rank's time
counts. Before anything is timed, each way must give the exact sum of small whole numbers, and
`leaves=` the bits of one rank that has all leaves.

The JSON record (`schema` = "gradred-leaves/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    rows      [{leaves, bytes, ms{plain, blocking, started}, ratio{blocking, started}}]

`leaves` are those of a rank, `bytes` those of a leaf, `ms` medians in milliseconds. A `ratio` has
median, p10 and p90 of the time in times of the plain way, round by round. Exit status: 0 done; 1 a
sum was wrong; 2 usage.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from arguments import options, parse_once, read
from mpi4py import MPI

import gradred
from gradred.bench.machine import describe, mpi_name
from gradred.bench.rank_zero import say, write_json

SCHEMA = "gradred-leaves/1"
SIZES = (8, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 16 << 20)
LEAVES = (1, 3, 4)
Floats = npt.NDArray[np.float32]


def ways_of(comm: gradred.Comm, x: Floats, out: Floats) -> dict[str, Callable[[], object]]:
    def plain() -> None:
        comm.Allreduce(functools.reduce(np.add, x), out)

    return {
        "plain": plain,
        "blocking": lambda: comm.Allreduce(x, out, leaves=len(x)),
        "started": lambda: comm.Iallreduce(x, out, leaves=len(x)).Wait(),
    }


def is_right(comm: gradred.Comm, leaves: int, count: int) -> bool:
    """Whether each way gives the exact sum, and two of them the bits of one rank."""
    whole = np.arange(leaves * count, dtype=np.float32).reshape(leaves, count) % 7 + comm.rank
    out, ranks = np.empty(count, np.float32), comm.size
    wanted = ranks * (whole - comm.rank).sum(0) + leaves * ranks * (ranks - 1) / 2
    right = []
    for run in ways_of(comm, whole, out).values():
        run()
        right.append(bool((out == wanted).all()))
    rng = np.random.default_rng(1)
    everyone = rng.standard_normal((ranks * leaves, count)).astype(np.float32)
    own = everyone[comm.rank * leaves : (comm.rank + 1) * leaves]
    alone = gradred.allreduce(everyone, leaves=len(everyone), comm=MPI.COMM_SELF)
    for name in ("blocking", "started"):
        ways_of(comm, own, out)[name]()
        right.append(out.tobytes() == alone.tobytes())
    return bool(comm.allreduce(all(right), MPI.LAND))


def measured(comm: gradred.Comm, leaves: int, nbytes: int, rounds: int) -> dict[str, Any]:
    x, out = np.ones((leaves, nbytes // 4), np.float32), np.empty(nbytes // 4, np.float32)
    ways = ways_of(comm, x, out)
    repeats = max(1, min(100, (1 << 20) // nbytes))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name in sorted(ways, reverse=turn % 2 == 1):
            comm.Barrier()
            begin = time.perf_counter()
            for _ in range(repeats):
                ways[name]()
            spent = comm.allreduce((time.perf_counter() - begin) / repeats, MPI.MAX)
            if turn > 0:
                times[name].append(spent)
    row: dict[str, Any] = {"leaves": leaves, "bytes": nbytes}
    row["ms"] = {name: 1e3 * statistics.median(found) for name, found in times.items()}
    row["ratio"] = {}
    for name in ("blocking", "started"):
        ratios = sorted(a / b for a, b in zip(times[name], times["plain"], strict=True))
        tenth = len(ratios) // 10
        row["ratio"][name] = {
            "median": statistics.median(ratios),
            "p10": ratios[tenth],
            "p90": ratios[-1 - tenth],
        }
    return row


def parsed() -> argparse.Namespace:
    return read(options(__doc__ or "", rounds=11, sizes=SIZES))


def main() -> int:
    comm = gradred.Comm(MPI.COMM_WORLD)
    given = parse_once(parsed, MPI.COMM_WORLD)
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    rows = []
    say(comm, f"# {mpi_name()}, {comm.size} ranks; ratios to the plain way, medians and p10-p90")
    say(comm, f"{'leaves':>6} {'bytes':>9} {'plain ms':>9}  blocking             started")
    for leaves in LEAVES:
        for nbytes in given.sizes:
            if not is_right(comm, leaves, nbytes // 4):
                say(comm, f"{leaves} leaves of {nbytes} bytes: a sum is wrong")
                return 1
            row = measured(comm, leaves, nbytes, given.rounds)
            rows.append(row)
            ratios = "  ".join(
                f"{one['median']:6.2f} {one['p10']:6.2f}-{one['p90']:6.2f}"
                for one in row["ratio"].values()
            )
            say(comm, f"{leaves:6} {nbytes:9} {row['ms']['plain']:9.3f}  {ratios}")
    record = {"schema": SCHEMA} | describe(comm, vars(given)) | {"rows": rows}
    if given.json and comm.rank == 0:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
