"""Measure the cost of a communicator that is made, used once and freed, against the MPI's own.

    gradred run -np 2 python benchmarks/communicators.py --json out.json

COMM_WORLD has been used before. In each turn a communicator of gradred and one of the MPI are made,
in alternating order, by Dup or Split. Each carries out one Allreduce of 8 bytes, then a second one,
and is freed. The ranks begin each step together, and the slowest rank's time counts. The table
shows medians over the turns, with the 10th and 90th percentile.

Then, also in turn, 300 communicators are made, each with one Allreduce of 8 or 8,000 bytes, and
kept. The table shows how long that took, and the memory: the MPI's own, and gradred's beyond that.
Then 2,000 are made and freed one by one.

Last, persistent requests of one communicator are made by Allreduce_init, started once and kept. The
table shows how long each took, in the first and in the last quarter, and the memory.

The JSON record (`schema` = "gradred-communicators/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}, load
    flag      {what, us}: the time of one signal between ranks 0 and 1; null on one rank
    rows      [{made_by, step, turns, gradred{median, p10, p90}, mpi{...}}], in microseconds
    many      [{made_by, bytes, count, kept, turns, gradred{us, cpu_us, kib}, mpi{...}}]: medians
              of one communicator, on the slowest rank; processor time and memory of all ranks
              together
    requests  [{bytes, count, gradred{first_us, last_us, cpu_us, kib}, mpi{...}}]: likewise, of one
              request

Exit status: 0 done; 1 a first Allreduce or a Free took longer than --check-first or --check-free; 2
usage.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from arguments import parse_once
from mpi4py import MPI

import gradred
from gradred.bench.machine import describe, mpi_name, one_way_latency
from gradred.bench.rank_zero import say, write_json

SCHEMA = "gradred-communicators/1"
STEPS = ("make", "first", "second", "free")
MADE_BY: dict[str, Callable[[MPI.Intracomm], MPI.Intracomm]] = {
    "Dup": lambda comm: comm.Dup(),
    "Split, all": lambda comm: comm.Split(0, -comm.rank),
    "Split, pairs": lambda comm: comm.Split(comm.rank // 2, comm.rank),
}
WARM_UP = 5
ALIVE, IN_TURN = 300, 2000
REQUESTS = ((8, 1600), (8000, 400), (64_000, 100))  # bytes and how many
TURNS_OF_MANY = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="cost of communicators")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--check-first", type=float, metavar="US", help="fail above it")
    parser.add_argument("--check-free", type=float, metavar="US", help="fail above it")
    given = parser.parse_args()
    if given.turns < 1:
        parser.error("needs --turns of 1 or more")
    return given


def one_turn(world: MPI.Intracomm, make: Callable[[], MPI.Intracomm]) -> list[float]:
    """Return this rank's seconds of each of STEPS."""
    x, y = np.ones(1), np.empty(1)
    made: list[MPI.Intracomm] = []
    steps: tuple[Callable[[], Any], ...] = (
        lambda: made.append(make()),
        lambda: made[0].Allreduce(x, y),
        lambda: made[0].Allreduce(x, y),
        lambda: made[0].Free(),
    )
    seconds = []
    for step in steps:
        world.Barrier()
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def measure(made_by: str, turns: int) -> list[dict[str, Any]]:
    """Return the rows of one method to make communicators."""
    world = MPI.COMM_WORLD
    make = MADE_BY[made_by]
    sources = {"gradred": gradred.Comm(world), "mpi": world}
    times: dict[str, list[list[float]]] = {name: [] for name in sources}
    for turn in range(WARM_UP + turns):
        for name in sorted(sources, reverse=turn % 2 == 1):
            times[name].append(one_turn(world, lambda source=sources[name]: make(source)))
    rows: list[dict[str, Any]] = [
        {"made_by": made_by, "step": step, "turns": turns} for step in STEPS
    ]
    for name, mine in times.items():
        slowest = np.empty((WARM_UP + turns, len(STEPS)))
        world.Allreduce(np.array(mine), slowest, op=MPI.MAX)
        percentiles = np.percentile(slowest[WARM_UP:], (50, 10, 90), axis=0) * 1e6
        for row, of_step in zip(rows, percentiles.T.tolist(), strict=True):
            row[name] = dict(zip(("median", "p10", "p90"), of_step, strict=True))
    return rows


def proportional_kib() -> int:
    """Memory of this rank; what ranks share counts by halves, thirds, and so on."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def one_of_many(
    world: MPI.Intracomm,
    make: Callable[[], MPI.Intracomm],
    count: int,
    elements: int,
    *,
    kept: bool,
) -> tuple[float, float, float]:
    """Return microseconds, processor time of all ranks in them, and KiB of all ranks, by one."""
    x, y = np.ones(elements), np.empty(elements)
    world.Barrier()
    before, begin, begin_cpu = proportional_kib(), time.perf_counter(), time.process_time()
    alive = []
    for _ in range(count):
        made = make()
        made.Allreduce(x, y)
        alive.append(made) if kept else made.Free()
    us = 1e6 * (time.perf_counter() - begin)
    cpu_us = 1e6 * (time.process_time() - begin_cpu)
    world.Barrier()
    kib = proportional_kib() - before
    world.Barrier()
    for made in alive:
        made.Free()
    found = [world.allreduce(us, MPI.MAX), world.allreduce(cpu_us), world.allreduce(kib)]
    return tuple(one / count for one in found)


def measure_many(made_by: str, elements: int, *, kept: bool) -> dict[str, Any]:
    """Return the row of many communicators that are made by one method."""
    world = MPI.COMM_WORLD
    count = ALIVE if kept else IN_TURN
    row: dict[str, Any] = {"made_by": made_by, "bytes": 8 * elements, "count": count, "kept": kept}
    row["turns"] = TURNS_OF_MANY
    sources = {"mpi": world, "gradred": gradred.Comm(world)}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sources}
    for turn in range(TURNS_OF_MANY):
        for name in sorted(sources, reverse=turn % 2 == 0):
            source = sources[name]
            make = lambda source=source: MADE_BY[made_by](source)  # noqa: E731
            # Both keep memory of communicators that were freed, so the first time counts. The MPI's
            # own comes first, so gradred's memory is what it takes beyond the MPI's.
            found[name].append(one_of_many(world, make, count, elements, kept=kept))
    for name, mine in found.items():
        us, cpu_us, kib = zip(*mine, strict=True)
        row[name] = {"us": np.median(us), "cpu_us": np.median(cpu_us), "kib": max(kib)}
    return row


def line_of_many(row: dict[str, Any]) -> str:
    what = f"{row['count']} {'alive' if row['kept'] else 'in turn'}, {row['bytes']} B"
    of = [f"{row[name][part]:9.1f}" for name in ("gradred", "mpi") for part in row[name]]
    return f"{row['made_by']:14} {what:21} " + " ".join(of)


def of_requests(source: MPI.Intracomm, elements: int, count: int) -> dict[str, float]:
    """Return what one persistent request of so many takes."""
    world = MPI.COMM_WORLD
    x, y = np.ones(elements), np.empty(elements)
    kept, ends = [], []
    world.Barrier()
    before, begin_cpu = proportional_kib(), time.process_time()
    ends.append(time.perf_counter())
    for made in range(count):
        kept.append(source.Allreduce_init(x, y))
        kept[-1].Start()
        kept[-1].Wait()
        if (made + 1) % (count // 4) == 0:
            ends.append(time.perf_counter())
    cpu_us = 1e6 * (time.process_time() - begin_cpu)
    world.Barrier()
    kib = proportional_kib() - before
    world.Barrier()
    for request in kept:
        request.Free()
    first, *_, last = (4e6 * seconds / count for seconds in np.diff(ends))
    return {
        "first_us": world.allreduce(first, MPI.MAX),
        "last_us": world.allreduce(last, MPI.MAX),
        "cpu_us": world.allreduce(cpu_us) / count,
        "kib": world.allreduce(kib) / count,
    }


def measure_requests(size: int, count: int) -> dict[str, Any]:
    """Return the row of persistent requests of `size` bytes, on communicators of their own."""
    row: dict[str, Any] = {"bytes": size, "count": count}
    for name, source in (("mpi", MPI.COMM_WORLD), ("gradred", gradred.Comm(MPI.COMM_WORLD))):
        made = source.Dup()
        made.Allreduce(np.ones(1), np.empty(1))
        row[name] = of_requests(made, size // 8, count)
        made.Free()
    return row


def line_of_requests(row: dict[str, Any]) -> str:
    of = [f"{row[name][part]:9.1f}" for name in ("gradred", "mpi") for part in row[name]]
    return f"{row['count']:5} of {row['bytes']:6} B " + " ".join(of)


def line(row: dict[str, Any]) -> str:
    times = [row[name][part] for name in ("gradred", "mpi") for part in ("median", "p10", "p90")]
    return f"{row['made_by']:14} {row['step']:8}" + "".join(f" {one:9.1f}" for one in times)


def too_slow(row: dict[str, Any], given: argparse.Namespace) -> bool:
    limit = {"first": given.check_first, "free": given.check_free}.get(row["step"])
    return limit is not None and row["gradred"]["median"] > limit


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["load"] = os.getloadavg()[0]  # the host's load at the beginning
    record["flag"] = one_way_latency(world)
    gradred.Comm(world).Allreduce(np.ones(1), np.empty(1))
    say(world, f"# {world.size} ranks, {mpi_name()}; us, by the slowest rank")
    columns = "".join(f" {name:>9}" for name in ("gradred", "p10", "p90", "mpi", "p10", "p90"))
    say(world, f"{'# made by':14} {'step':8}{columns}")
    record["rows"] = rows = []
    for made_by in MADE_BY:
        if made_by == "Split, pairs" and world.size < 4:
            continue
        for row in measure(made_by, given.turns):
            rows.append(row)
            say(world, line(row))
    columns = "".join(f" {name:>9}" for name in 2 * ("us", "cpu us", "KiB"))
    say(world, f"{'# made by':14} {'':21}{columns}  of gradred's, of the MPI's")
    record["many"] = []
    for made_by in ("Dup", "Split, all"):
        for kept, elements in ((True, 1), (True, 1000), (False, 1)):
            record["many"].append(measure_many(made_by, elements, kept=kept))
            say(world, line_of_many(record["many"][-1]))
    columns = "".join(f" {name:>9}" for name in 2 * ("first us", "last us", "cpu us", "KiB"))
    say(world, f"{'# requests':17}{columns}  of gradred's, of the MPI's")
    record["requests"] = []
    for size, count in REQUESTS:
        record["requests"].append(measure_requests(size, count))
        say(world, line_of_requests(record["requests"][-1]))
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    slow = [f"{row['made_by']}: {row['step']}" for row in rows if too_slow(row, given)]
    if slow:
        say(world, f"slower than allowed: {', '.join(slow)}", error=True)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
