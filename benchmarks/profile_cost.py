"""Measure the cost of GRADRED_PROFILE: calls on communicators with a profile and without one.

    gradred run -np 2 python benchmarks/profile_cost.py --json out.json

Eight communicators over all ranks, four with a profile and four without, are called on the same
buffers, in many short blocks, in alternating order. The figure of a communicator is the 20th
percentile of its blocks' means on the slowest rank, since other programs disturb only some blocks.
`ratio` is the mean over those with a profile divided by the mean over those without. `low` and
`high` are the same for the fastest and the slowest communicator with a profile: the placement of
memory differs between communicators. `noise` is how far those without a profile differ. The table
of the profile follows at the end, on stderr.

The JSON record (`schema` = "gradred-profile-cost/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}, load
    flag      {what, us}: the time of one signal between ranks 0 and 1; null on one rank
    rows      [{call, bytes, calls, rounds, off_us, on_us, ratio, low, high, noise,
                off_each_us[4], on_each_us[4]}]

Exit status: 0 done; 1 a ratio is above --check; 2 usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from timeit import Timer
from typing import Any

import numpy as np
from arguments import options, parse_once, read
from blocks import block_length, interleave
from mpi4py import MPI

import gradred
from gradred import config
from gradred.bench.machine import describe, mpi_name, one_way_latency
from gradred.bench.rank_zero import say, write_json

SCHEMA = "gradred-profile-cost/1"
PROFILES = (False, True, True, False, False, True, True, False)
CASES = (
    ("comm.Allreduce(x, y)", 8),
    ("comm.Allreduce(x, y)", 4 << 10),
    ("comm.Allreduce(x, y)", 1 << 20),
    ("p()", 8),
    ("comm.Iallreduce(x, y).Wait()", 8),
)


def arguments() -> argparse.Namespace:
    parser = options("cost of GRADRED_PROFILE", rounds=120, seconds=40.0)
    parser.add_argument("--check", type=float, metavar="RATIO", help="fail above it, such as 1.02")
    return read(parser, least_rounds=1)


def communicator(profile: bool) -> gradred.Comm:
    """Make a communicator that is set up with or without a profile."""
    config.set("profile", profile)
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    config.reset("profile")
    return comm


def measure(
    comms: list[gradred.Comm], statement: str, size: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """Return the row of one case; the communicators are as in PROFILES."""
    x, y = np.ones(size // 8), np.zeros(size // 8)
    timers = []
    for comm in comms:
        names = {"comm": comm, "x": x, "y": y, "p": comm.Allreduce_init(x, y)}
        timers.append(Timer(statement, globals=names))
    world = MPI.COMM_WORLD
    block = block_length(timers[0], seconds / rounds / len(timers), world, most=1000)
    times = np.percentile(interleave(timers, rounds, block, world), 20, axis=0) * 1e6
    on, off = times[np.array(PROFILES)], times[~np.array(PROFILES)]
    return {
        "call": statement,
        "bytes": size,
        "calls": block,
        "rounds": rounds,
        "off_us": off.mean(),
        "on_us": on.mean(),
        "ratio": on.mean() / off.mean(),
        "low": on.min() / off.mean(),
        "high": on.max() / off.mean(),
        "noise": (off.max() - off.min()) / off.mean(),
        "off_each_us": off.tolist(),
        "on_each_us": on.tolist(),
    }


def line(row: dict[str, Any]) -> str:
    times = f"{row['off_us']:9.3f} {row['on_us']:9.3f}"
    cost = f"{row['ratio']:7.3f} {row['low']:6.3f}-{row['high']:.3f}"
    return f"{row['call']:30} {row['bytes']:8} {times} {cost} {row['noise']:7.3f}"


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["load"] = os.getloadavg()[0]  # the host's load at the beginning
    record["flag"] = one_way_latency(world)
    comms = [communicator(profile) for profile in PROFILES]
    say(world, f"# {world.size} ranks, {mpi_name()}; us per call")
    columns = f"{'off':>9} {'on':>9} {'on/off':>7} {'low-high':>12} {'noise':>7}"
    say(world, f"{'# call':30} {'bytes':>8} {columns}")
    record["rows"] = rows = []
    for statement, size in CASES:
        rows.append(measure(comms, statement, size, given.rounds, given.seconds / len(CASES)))
        say(world, line(rows[-1]))
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    above = [row["bytes"] for row in rows if row["ratio"] > (given.check or np.inf)]
    if above:
        say(world, f"a profile costs more than {given.check} at bytes {above}", error=True)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
