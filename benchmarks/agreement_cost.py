"""Measure the cost of the agreement: ranks agree on each call before it moves data.

    gradred run -np 2 python benchmarks/agreement_cost.py --json out.json

Some calls have an agreement that is an operation of its own. They are timed with and without it, in
alternating blocks: a call that gradred leaves to the MPI, and a schedule on ranks that share memory
(without shared memory, the signature travels with the data). In other calls the agreement is part
of the data's own message or cache line, so it cannot be left out. benchmarks/compare_builds.py
compares those with a build that does not check.

The JSON record (`schema` = "gradred-agreement-cost/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag      {what, us}: the time of one signal between ranks 0 and 1
    rows      [{call, with_us, without_us, extra_us, extra_p10_us, extra_p90_us, calls,
                with_rounds_us[rounds], without_rounds_us[rounds]}]
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
from gradred.bench.timing import block_length, interleave, microseconds

SCHEMA = "gradred-agreement-cost/1"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="cost of agreeing before each call")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=10.0, help="the whole run, about")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.rounds < 3 or given.seconds <= 0:
        parser.error("needs --rounds of 3 or more and --seconds above 0")
    return given


def without_shared_memory(world: MPI.Intracomm) -> gradred.Comm:
    os.environ["GRADRED_SHM"] = "0"
    try:
        comm = gradred.Comm(world.Dup())
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))  # a communicator reads settings in its first use
        return comm
    finally:
        del os.environ["GRADRED_SHM"]


def pairs(world: MPI.Intracomm) -> dict[str, tuple[Timer, Timer]]:
    """Return by name a call with the agreement, and the same call without."""
    x, y = np.ones(2, np.float32), np.zeros(2, np.float32)
    pair = MPI.FLOAT.Create_contiguous(2).Commit()  # a type that gradred leaves to the MPI
    own = MPI.Op.Create(lambda a, b, _: None, commute=True)
    comm = gradred.Comm(world)
    apart = without_shared_memory(world)
    handed = "comm.Allreduce([x, 1, pair], [y, 1, pair], own)"
    schedule = "allreduce(x, out=y, comm=comm, plan='recursive_doubling')"
    names = {"x": x, "y": y, "pair": pair, "own": own, "allreduce": gradred.allreduce}

    def timer(statement: str, communicator: MPI.Intracomm) -> Timer:
        return Timer(statement, globals=names | {"comm": communicator})

    return {
        "handed to the MPI, 8 bytes": (timer(handed, comm), timer(handed, world)),
        "a schedule, 8 bytes": (timer(schedule, comm), timer(schedule, apart)),
    }


def measure(world: MPI.Intracomm, rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the rows; collective on `world`."""
    for call, timers in pairs(world).items():
        each = seconds / rounds / 4
        block = min(block_length(timer, each, world) for timer in timers)
        times = interleave(timers, rounds, block, world)
        extra = (times[:, 0] - times[:, 1]) * 1e6
        low, middle, high = np.percentile(extra, [10, 50, 90])
        yield {
            "call": call,
            "with_us": microseconds(times[:, 0]),
            "without_us": microseconds(times[:, 1]),
            "extra_us": float(middle),
            "extra_p10_us": float(low),
            "extra_p90_us": float(high),
            "calls": block,
            "with_rounds_us": (times[:, 0] * 1e6).tolist(),
            "without_rounds_us": (times[:, 1] * 1e6).tolist(),
        }


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    if world.size < 2:
        say(world, "needs two ranks: gradred run -np 2 python ...", error=True)
        return 2
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["flag"] = one_way_latency(world)
    record["rows"] = rows = []
    say(world, f"# agreeing on a call, {world.size} ranks, {mpi_name()}; us per call, medians")
    for row in measure(world, given.rounds, given.seconds):
        rows.append(row)
        spread = f"{row['extra_p10_us']:.2f} to {row['extra_p90_us']:.2f}"
        say(
            world,
            f"{row['call']:28} with {row['with_us']:7.2f}  without {row['without_us']:7.2f}"
            f"  extra {row['extra_us']:6.2f} ({spread})",
        )
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
