"""What GRADRED_PROFILE costs: calls on communicators with a profile against those without.

    gradred run -np 2 python benchmarks/profile_cost.py --json out.json

Four communicators over all ranks, two with a profile and two without, are called on the same
buffers, block by block in turn, in alternating order. `ratio` is the time with a profile over the
time without, round by round, each the mean of its two communicators; `noise` is the same of the two
without: what is within it cannot be told from nothing. The time of a call is the mean over a block
on the slowest rank; samples of the MPI are part of it. With a profile on, the table of the profile
follows at the end, on stderr.

The JSON record (`schema` = "gradred-profile-cost/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag      {what, us}: the time of one signal between ranks 0 and 1; null on one rank
    rows      [{call, bytes, calls, rounds, off_us, on_us, ratio, ratio_p10, ratio_p90,
                noise, noise_p10, noise_p90, off_rounds_us[rounds], on_rounds_us[rounds]}]

Exit status: 0 done; 1 the median of a ratio is above --check; 2 usage.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from timeit import Timer
from typing import Any

import numpy as np
from mpi4py import MPI

import gradred
from gradred import config
from gradred.bench.machine import describe, flag_time, mpi_name
from gradred.bench.rank_zero import parse_once, say, write_json
from gradred.bench.timing import block_length, interleave, microseconds, ratio

SCHEMA = "gradred-profile-cost/1"
CASES = (
    ("comm.Allreduce(x, y)", 8),
    ("comm.Allreduce(x, y)", 4 << 10),
    ("comm.Allreduce(x, y)", 1 << 20),
    ("p()", 8),
    ("comm.Iallreduce(x, y).Wait()", 8),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="cost of GRADRED_PROFILE")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=25.0, help="the whole run, about")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--check", type=float, metavar="RATIO", help="fail above it, such as 1.02")
    given = parser.parse_args()
    if given.rounds < 1 or given.seconds <= 0:
        parser.error("needs --rounds of 1 or more and --seconds above 0")
    return given


def communicator(profile: bool) -> gradred.Comm:
    """One of its own, set up with or without a profile."""
    config.set("profile", profile)
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    config.reset("profile")
    return comm


def measure(
    comms: list[gradred.Comm], statement: str, size: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """The row of one case; the first half of `comms` has no profile."""
    x, y = np.ones(size // 8), np.zeros(size // 8)
    timers = []
    for comm in comms:
        names = {"comm": comm, "x": x, "y": y, "p": comm.Allreduce_init(x, y)}
        timers.append(Timer(statement, globals=names))
    world = MPI.COMM_WORLD
    block = block_length(timers[0], seconds / rounds / len(timers), world)
    times = interleave(timers, rounds, block, world)
    off, on = times[:, :2].mean(axis=1), times[:, 2:].mean(axis=1)
    cost, noise = ratio(on, off), ratio(times[:, 1], times[:, 0])
    return {
        "call": statement,
        "bytes": size,
        "calls": block,
        "rounds": rounds,
        "off_us": microseconds(off),
        "on_us": microseconds(on),
        "ratio": cost.median,
        "ratio_p10": cost.p10,
        "ratio_p90": cost.p90,
        "noise": noise.median,
        "noise_p10": noise.p10,
        "noise_p90": noise.p90,
        "off_rounds_us": (off * 1e6).tolist(),
        "on_rounds_us": (on * 1e6).tolist(),
    }


def line(row: dict[str, Any]) -> str:
    times = f"{row['off_us']:9.3f} {row['on_us']:9.3f}"
    cost = f"{row['ratio']:7.3f} {row['ratio_p10']:6.3f}-{row['ratio_p90']:.3f}"
    noise = f"{row['noise']:7.3f} {row['noise_p10']:6.3f}-{row['noise_p90']:.3f}"
    return f"{row['call']:30} {row['bytes']:8} {times} {cost} {noise}"


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["flag"] = flag_time(world)
    comms = [communicator(profile) for profile in (False, False, True, True)]
    say(world, f"# {world.size} ranks, {mpi_name()}; us per call, median of rounds")
    columns = f"{'off':>9} {'on':>9} {'on/off':>7} {'p10-p90':>12} {'noise':>7} {'p10-p90':>12}"
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
