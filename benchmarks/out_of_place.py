"""Measure what it saves, over messages, to read the input in place instead of copying it first.

    gradred run -np 2 python benchmarks/out_of_place.py --json out.json

It times `Allreduce(x, y)` against the same sum in place after a copy, which a schedule with a
single buffer needs: `y[:] = x; Allreduce(IN_PLACE, y)`. They run in alternating blocks, over
messages (without shared memory), with one schedule at a time.

The JSON record (`schema` = "gradred-out-of-place/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag      {what, us}: the time of one signal between ranks 0 and 1
    rows      [{plan, bytes, us, copied_us, ratio, ratio_p10, ratio_p90, calls,
                rounds_us[rounds], copied_rounds_us[rounds]}]; ratio is copied_us divided by us
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from timeit import Timer
from typing import Any

import numpy as np
from mpi4py import MPI

import gradred
from gradred.bench.machine import describe, mpi_name, one_way_latency
from gradred.bench.rank_zero import parse_once, say, write_json
from gradred.bench.timing import block_length, interleave, microseconds, ratio

SCHEMA = "gradred-out-of-place/1"
CALL = "allreduce(x, out=y, comm=comm, plan=plan)"
COPIED = "y[:] = x; allreduce(y, out=y, comm=comm, plan=plan)"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="input read in place of a copy")
    parser.add_argument("--plans", nargs="+", default=["ring", "rabenseifner"])
    parser.add_argument(
        "--sizes", nargs="+", type=int, metavar="BYTES", default=[1 << 20, 1 << 23, 1 << 26]
    )
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=60.0, help="the whole run, about")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.rounds < 3 or given.seconds <= 0:
        parser.error("needs --rounds of 3 or more and --seconds above 0")
    return given


def measure(
    comm: gradred.Comm, given: argparse.Namespace, world: MPI.Intracomm
) -> Iterator[dict[str, Any]]:
    """Yield the rows; collective on `world`."""
    each = given.seconds / len(given.plans) / len(given.sizes) / given.rounds / 2
    for plan in given.plans:
        for nbytes in given.sizes:
            x = np.full(nbytes // 4, world.rank + 1, np.float32)
            names = {"x": x, "y": np.empty_like(x), "plan": plan}
            names |= {"comm": comm, "allreduce": gradred.allreduce}
            timers = [Timer(statement, globals=names) for statement in (CALL, COPIED)]
            block = min(block_length(timer, each, world) for timer in timers)
            times = interleave(timers, given.rounds, block, world)
            middle, low, high = ratio(times[:, 1], times[:, 0])
            yield {
                "plan": plan,
                "bytes": nbytes,
                "us": microseconds(times[:, 0]),
                "copied_us": microseconds(times[:, 1]),
                "ratio": middle,
                "ratio_p10": low,
                "ratio_p90": high,
                "calls": block,
                "rounds_us": (times[:, 0] * 1e6).tolist(),
                "copied_rounds_us": (times[:, 1] * 1e6).tolist(),
            }


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    os.environ["GRADRED_SHM"] = "0"
    comm = gradred.Comm(world.Dup())
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["flag"] = one_way_latency(world)
    record["rows"] = rows = []
    say(world, f"# allreduce out of place, {world.size} ranks, {mpi_name()}; us per call, medians")
    for row in measure(comm, given, world):
        rows.append(row)
        say(
            world,
            f"{row['plan']:14}{row['bytes']:10}  {row['us']:10.1f}  copied first "
            f"{row['copied_us']:10.1f}  {row['ratio']:.2f} ({row['ratio_p10']:.2f}"
            f"-{row['ratio_p90']:.2f})",
        )
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
