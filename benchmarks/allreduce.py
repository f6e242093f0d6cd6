"""Compare gradred's Allreduce with that of the MPI underneath, from 8 B to 64 MiB.

    gradred run -np 2 python benchmarks/allreduce.py --json out.json --plot out.svg

`mpiexec -n 2 python ...` works as well. Both run on the same buffers, out of place, the MPI through
mpi4py on the plain COMM_WORLD. They run in alternating blocks for several rounds. Before a size is
timed, its results are compared with exact ones, in place and out of place.

The time of a call is the mean over a block of calls, on the slowest rank. The table shows the
median over the rounds. `ratio` is MPI's time divided by gradred's, round by round: above 1, gradred
is faster.

Before each round the one-way latency between ranks 0 and 1 is measured. If the cores of a virtual
machine move, it falls into two groups. Then a table for each group, near and far, follows the table
of all rounds. `--passes` measures all sizes several times, so that each size has rounds of both.

The JSON record (`schema` = "gradred-allreduce/2"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag        {what, us}: the time of one signal between ranks 0 and 1; null on one rank
    placements  {name: {rounds, flag_us}}: near and far, or all; unknown if a rank did not run
    seconds     of the whole run
    rows        [{bytes, count, calls[passes], rounds, gradred_us, mpi_us, ratio, ratio_p10,
                  ratio_p90, gradred_rounds_us[rounds], mpi_rounds_us[rounds],
                  flag_rounds_us[rounds], placement_rounds[rounds],
                  placements{name: {rounds, gradred_us, mpi_us, ratio, ratio_p10, ratio_p90}},
                  checked}]

Exit status: 0 done; 1 a result was wrong, or gradred was slower than --check-slower allows;
2 usage.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path
from timeit import Timer
from typing import Any

import numpy as np
import placement
from arguments import parse_once
from blocks import agree, block_length, interleave, microseconds
from mpi4py import MPI

import gradred
from gradred.bench import plot
from gradred.bench.contenders import MPI_OPS
from gradred.bench.inputs import Inputs
from gradred.bench.machine import describe, mpi_name, one_way_latency
from gradred.bench.rank_zero import say, write_json
from gradred.bench.timing import Seconds, ratio

SCHEMA = "gradred-allreduce/2"
TYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
TYPES += ["float32", "float64"]
OPS = ("max", "min", "prod", "sum")
BETWEEN = (12 << 10, 192 << 10, 3 << 20)  # not powers of two, where plans tend to change


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="gradred's Allreduce against that of the MPI underneath"
    )
    parser.add_argument("--min", type=int, default=8, metavar="BYTES")
    parser.add_argument("--max", type=int, default=64 << 20, metavar="BYTES")
    parser.add_argument("--also", type=int, action="append", default=[], metavar="BYTES")
    parser.add_argument("--type", choices=TYPES, default="float32")
    parser.add_argument("--op", choices=OPS, default="sum")
    parser.add_argument("--rounds", type=int, default=9, help="per size and pass; 3 at least")
    parser.add_argument("--passes", type=int, default=1, help="over all sizes (default: 1)")
    parser.add_argument("--seconds", type=float, default=15.0, help="the whole run, about")
    parser.add_argument("--note", default="", help="for the record: what is special about the run")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="svg, png or pdf")
    parser.add_argument(
        "--check-slower",
        type=float,
        metavar="FACTOR",
        help="fail where gradred takes more than FACTOR times as long, for example 1.05",
    )
    given = parser.parse_args()
    if not 0 < given.min <= given.max or given.rounds < 3 or given.seconds <= 0:
        parser.error("needs 0 < --min <= --max, --rounds of 3 or more and --seconds above 0")
    if given.passes < 1:
        parser.error("needs --passes of 1 or more")
    if given.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib, or leave --plot out")
    return given


def sizes(given: argparse.Namespace) -> list[int]:
    """Return powers of two from --min to --max, a few between, and --also; in whole elements."""
    powers = [1 << k for k in range(given.max.bit_length()) if given.min <= 1 << k <= given.max]
    between = [size for size in BETWEEN if given.min <= size <= given.max]
    item = np.dtype(given.type).itemsize
    return sorted({max(1, size // item) * item for size in [*powers, *between, *given.also]})


class Pair:
    """gradred and the MPI underneath, with one pair of buffers long enough for all sizes."""

    def __init__(self, given: argparse.Namespace, longest: int) -> None:
        self.plain = MPI.COMM_WORLD
        self.comm = gradred.Comm(MPI.COMM_WORLD)
        self.flags = gradred.Comm(MPI.COMM_WORLD.Dup())  # apart from the measured communicators
        self.item = np.dtype(given.type).itemsize
        self._op = MPI_OPS[given.op]
        self._inputs = Inputs(given.type, given.op, self.plain.size)
        self._send, self._receive = (np.ones(longest, given.type) for _ in range(2))
        self._inputs.fill(self._send, self.plain.rank)

    def timers(self, count: int) -> list[Timer]:
        """Return the calls as a user writes them: gradred's, then MPI's."""
        names = {"x": self._send[:count], "y": self._receive[:count], "op": self._op}
        return [
            Timer("comm.Allreduce(x, y, op)", globals=names | {"comm": comm})
            for comm in (self.comm, self.plain)
        ]

    def wrong(self, count: int) -> list[str]:
        """Return what gave a wrong result on any rank; the same list on every rank."""
        failures = []
        send, receive = self._send[:count], self._receive[:count]
        expected = self._inputs.result("allreduce", count, 0)
        for name, comm in ("gradred", self.comm), ("MPI", self.plain):
            receive.fill(0)
            comm.Allreduce(send, receive, self._op)
            right = np.array_equal(receive, expected)
            self._inputs.fill(receive, self.plain.rank)
            comm.Allreduce(MPI.IN_PLACE, receive, self._op)
            right_in_place = np.array_equal(receive, expected)
            for good, how in (right, ""), (right_in_place, " in place"):
                if not self.plain.allreduce(good, MPI.LAND):
                    failures.append(f"{name}{how}")
        return failures


class Measured:
    """The measurements of one size so far."""

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count
        self.calls: list[int] = []  # calls of a block, by pass
        self.flags: list[float | None] = []  # one-way latencies by round, in microseconds
        self.times = np.empty((0, 2))  # seconds of gradred and of the MPI, by round

    def row(self, placements: list[str] | None = None) -> dict[str, Any]:
        """Return the size's row; given the rounds' placements, with figures for each placement."""
        row: dict[str, Any] = {"bytes": self.size, "count": self.count, "calls": self.calls}
        row |= summary(self.times)
        row["gradred_rounds_us"], row["mpi_rounds_us"] = (self.times * 1e6).T.tolist()
        row["flag_rounds_us"] = self.flags
        if placements is not None:
            row["placement_rounds"] = placements
            row["placements"] = {
                name: summary(self.times[[one == name for one in placements]])
                for name in dict.fromkeys(placements)
            }
        return row | {"checked": True}


def summary(times: Seconds) -> dict[str, Any]:
    """Return medians and ratio of some rounds."""
    compared = ratio(times[:, 1], times[:, 0])
    return {
        "rounds": len(times),
        "gradred_us": microseconds(times[:, 0]),
        "mpi_us": microseconds(times[:, 1]),
        "ratio": compared.median,
        "ratio_p10": compared.p10,
        "ratio_p90": compared.p90,
    }


def measure(pair: Pair, size: Measured, seconds: float, rounds: int) -> None:
    """Check and time one size in about `seconds`, and add the results to it."""
    failures = pair.wrong(size.count)
    if failures:
        raise ArithmeticError(f"wrong result at {size.size} bytes: {', '.join(failures)}")
    timers = pair.timers(size.count)
    block = min(block_length(timer, seconds / rounds / 2, pair.plain) for timer in timers)

    def look() -> None:
        size.flags.append(placement.flag_us(pair.flags))

    times = interleave(timers, rounds, block, pair.plain, before=look)
    size.calls.append(block)
    size.times = np.concatenate([size.times, times])


class Budget:
    """Divides a pass's seconds: each size gets the time it needs, and an equal part of the rest.

    Lowers `given.rounds`, to 3 at least, if the time is too short.
    """

    def __init__(
        self, pair: Pair, ladder: list[int], given: argparse.Namespace, seconds: float
    ) -> None:
        self._end = time.perf_counter() + seconds
        self._comm = pair.plain
        count = ladder[-1] // pair.item
        start = time.perf_counter()
        pair.wrong(count)
        checked = time.perf_counter()
        for timer in pair.timers(count):
            timer.timeit(1)
        check, both = checked - start, time.perf_counter() - checked

        def needed(rounds: int) -> float:  # for the largest size; two more rounds to find the block
            return agree(check + both * (rounds + 2), self._comm)

        while given.rounds > 3 and needed(given.rounds) * sum(ladder) / ladder[-1] > seconds:
            given.rounds -= 1
        self._per_byte = needed(given.rounds) / ladder[-1]

    def share(self, ladder: list[int], rounds: int) -> tuple[float, int]:
        """Return seconds and rounds for the first of the remaining sizes; the same on every rank.

        The rounds are fewer than `rounds`, but 3 at least, if earlier sizes have taken too long.
        """
        needed = self._per_byte * sum(ladder)
        left = -agree(time.perf_counter() - self._end, self._comm)
        spare = max(0.0, left - needed) / len(ladder)
        rounds = max(3, min(rounds, int(rounds * left / needed)))
        return self._per_byte * ladder[0] + spare, rounds


HEADER = f"{'# bytes':>10} {'gradred':>12} {'MPI':>12} {'ratio':>7} {'p10-p90':>12}"


def line(row: dict[str, Any]) -> str:
    spread = f"{row['ratio_p10']:.2f}-{row['ratio_p90']:.2f}"
    times = f"{row['gradred_us']:12.2f} {row['mpi_us']:12.2f}"
    return f"{row['bytes']:10d} {times} {row['ratio']:7.2f} {spread:>12}"


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw the table: time over size with the spread of the rounds, and the ratio below it."""
    rows = record["rows"]
    sizes = [row["bytes"] for row in rows]
    lines = []
    for key, label in ("gradred", f"gradred {record['versions']['gradred']}"), ("mpi", mpi_name()):
        spread = [np.percentile(row[f"{key}_rounds_us"], [10, 50, 90]) for row in rows]
        low, middle, high = np.transpose(spread)
        compared = [[row[name] for row in rows] for name in ("ratio", "ratio_p10", "ratio_p90")]
        ratios = compared if key == "mpi" else [None] * 3
        lines.append(plot.Line(label, sizes, middle, low, high, *ratios))
    what = record["arguments"]
    where = f"{record['ranks']} ranks on {record['hosts']} host{'s' * (record['hosts'] > 1)}"
    legend = plot.Legend(
        title=f"Allreduce, {where}, {what['type']} {what['op']}",
        line="median of the rounds",
        band="10-90 % of the rounds",
        below="MPI / gradred",
    )
    plot.draw(path, legend, lines)


def measure_all(pair: Pair, ladder: list[int], given: argparse.Namespace) -> list[Measured]:
    """Measure all sizes, pass by pass; prints the row of each size in the last pass."""
    found = [Measured(size, size // pair.item) for size in ladder]
    rounds = given.rounds
    for done in range(given.passes):
        given.rounds = rounds
        budget = Budget(pair, ladder, given, given.seconds / given.passes)
        for index, size in enumerate(found):
            measure(pair, size, *budget.share(ladder[index:], given.rounds))
            if done == given.passes - 1:
                say(pair.plain, line(size.row()))
    return found


def placed(found: list[Measured], record: dict[str, Any]) -> None:
    """Add the rows to the record, with the placement of each round."""
    flags = [flag for size in found for flag in size.flags]
    names = placement.named(flags)
    pairs = list(zip(names, flags, strict=True))
    record["placements"] = {}
    for name in dict.fromkeys(names):
        us = [flag for one, flag in pairs if one == name and flag is not None]
        middle = float(np.median(us)) if us else None
        record["placements"][name] = {"rounds": names.count(name), "flag_us": middle}
    left = iter(names)
    record["rows"] = [size.row([next(left) for _ in size.flags]) for size in found]


def say_placements(record: dict[str, Any], comm: MPI.Intracomm) -> None:
    """Print a table for each placement if there are two."""
    for name in (placement.NEAR, placement.FAR):
        about = record["placements"].get(name)
        if about is not None:
            say(
                comm,
                f"\n# {name}: {about['rounds']} rounds, one-way latency {about['flag_us']:.3f} us",
            )
            say(comm, HEADER)
        for row in record["rows"]:
            if name in row["placements"]:
                say(comm, line(row | row["placements"][name]))


def main() -> int:
    start = time.perf_counter()
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["flag"] = one_way_latency(world)
    ladder = sizes(given)
    pair = Pair(given, ladder[-1] // np.dtype(given.type).itemsize)
    say(world, f"# Allreduce, {world.size} ranks, {given.type} {given.op}: gradred, {mpi_name()}")
    if record["flag"]:
        say(world, f"# {record['flag']['us']:.2f} us: {record['flag']['what']}")
    ratio = "ratio: MPI's time / gradred's in each round, median"
    say(world, f"# us per call, medians of rounds; {ratio}\n{HEADER}")
    try:
        placed(measure_all(pair, ladder, given), record)
    except ArithmeticError as error:
        say(world, f"benchmarks/allreduce.py: {error}", error=True)
        return 1
    say_placements(record, world)
    record["seconds"] = agree(time.perf_counter() - start, world)
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    if world.rank == 0 and given.plot:
        draw(record, given.plot)
    rows = record["rows"]
    slower = [row["bytes"] for row in rows if row["ratio"] * (given.check_slower or np.inf) < 1]
    if slower:
        say(world, f"slower than {given.check_slower} times MPI at bytes {slower}", error=True)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
