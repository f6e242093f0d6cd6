"""Measure every call of gradred against the MPI's own method that does the same.

    gradred run -np 2 python benchmarks/every_call.py --json out.json
    gradred run -np 2 python benchmarks/every_call.py --calls gather scatter --sizes 8 1024
    gradred run -np 2 python benchmarks/every_call.py --dtypes f8 i8 c16 --between arrivals

Each call of `gradred.Comm` and each function on arrays is one row of CALLS, beside the method of
mpi4py's communicator with the same meaning. A function that makes its result is compared with a
method that writes into memory that is there. In each round each of the two runs a block of calls,
in alternating order, and the slowest rank's time counts. Each has arrays of its own, which are made
anew for every third of the rounds, in alternating order: where arrays of 1 MiB lie in memory can
change a time by half. Each time, both must have given the same result (a barrier has none).

`--between` says what a rank does before each call: `nothing`; `arrivals`: it comes up to 2 ms late,
each time by another random time; `work`: it computes on 4 MiB, so caches are cold. With these two
each call is timed alone, from when the last rank has come until the last one has its result. That
compares clocks of all ranks, so they must be on one machine (network namespaces of it will do).

The JSON record (`schema` = "gradred-every-call/2"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    limit     0.95: a ratio below it counts as slower
    rows      [{call, dtype, bytes, us{gradred, mpi}, worst_us{gradred, mpi}, ratio, ratio_p10,
              ratio_p90, rounds_us{...}[rounds]}]
    below     [[call, dtype, bytes, ratio]]: the rows whose ratio is below the limit, the lowest
              first
    surely_below  how many of them are below it in nine of ten rounds (`ratio_p90`)
    mean      the geometric mean of all ratios

`bytes` are those of one rank's array, `us` medians of the rounds. `worst_us` is the slowest call,
or the slowest round where blocks are timed. `ratio` is the median over the rounds of the MPI's time
divided by gradred's: above 1, gradred is faster.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from arguments import options, parse_once, read
from mpi4py import MPI

import gradred
from gradred.bench.machine import describe, mpi_name
from gradred.bench.rank_zero import say, write_json

SCHEMA = "gradred-every-call/2"
SIZES = (8, 1024, 16384, 65536, 262144, 1 << 20, 8 << 20)
LIMIT = 0.95
DTYPES = ("f4", "f8", "i8", "c16")
BETWEEN = ("nothing", "arrivals", "work")
LATEST = 2e-3  # seconds
LONG = 5e-3  # seconds of a call that is not tried again for the length of its blocks


class Pair(NamedTuple):
    """A call of gradred and one of the MPI, and the names of what they give.

    `make` is what both do once, where COMM stands for their communicator.
    """

    ours: str
    mpis: str
    result: str = "y"
    make: str = ""


def method(call: str, result: str = "y") -> Pair:
    """The same method of both communicators."""
    return Pair(f"g.{call}", f"w.{call}", result)


def overlapped(call: str, result: str = "y") -> Pair:
    """A call that is started, some work that does not look at it, and the wait."""
    ours, mpis = (f"r = {comm}.{call}; more.sum(); r.Wait()" for comm in "gw")
    return Pair(ours, mpis, result)


def persistent(call: str, result: str = "y") -> Pair:
    """A call that is made once, then started and waited for."""
    return Pair("p.Start(); p.Wait()", "p.Start(); p.Wait()", result, f"p = COMM.{call}")


CALLS = {
    "Comm.Allreduce": method("Allreduce(x, y)"),
    "Comm.Allreduce in place": method("Allreduce(IN_PLACE, z)", "z"),
    "Comm.Iallreduce, Wait": method("Iallreduce(x, y).Wait()"),
    "Comm.Iallreduce in place, Wait": method("Iallreduce(IN_PLACE, z).Wait()", "z"),
    "Comm.Iallreduce, work, Wait": overlapped("Iallreduce(x, y)"),
    "Comm.Allreduce_init, Start, Wait": persistent("Allreduce_init(x, y)"),
    "Comm.Reduce_scatter_block": method("Reduce_scatter_block(all, y)"),
    "Comm.Ireduce_scatter_block, Wait": method("Ireduce_scatter_block(all, y).Wait()"),
    "Comm.Allgather": method("Allgather(x, all)", "all"),
    "Comm.Allgather in place": method("Allgather(IN_PLACE, all)", "all"),
    "Comm.Iallgather, Wait": method("Iallgather(x, all).Wait()", "all"),
    "Comm.Bcast": method("Bcast(x)", "x"),
    "Comm.Ibcast, Wait": method("Ibcast(x).Wait()", "x"),
    "Comm.Scan": method("Scan(x, y)"),
    "Comm.Exscan": method("Exscan(x, y)"),
    "Comm.Iscan, Wait": method("Iscan(x, y).Wait()"),
    "Comm.Reduce": method("Reduce(x, y)"),
    "Comm.Gather": method("Gather(x, all)", "all"),
    "Comm.Scatter": method("Scatter(all, y)"),
    "Comm.Alltoall": method("Alltoall(all, more)", "more"),
    "Comm.Barrier": method("Barrier()"),
    "Comm.allreduce of a float": Pair("y = g.allreduce(1.5)", "y = w.allreduce(1.5)"),
    "Comm.allgather of a float": Pair("y = g.allgather(1.5)", "y = w.allgather(1.5)"),
    "Allreduce": Pair("gradred.Allreduce(x, y)", "w.Allreduce(x, y)"),
    "Allreduce, comm=": Pair("gradred.Allreduce(x, y, comm=d)", "w.Allreduce(x, y)"),
    "allreduce": Pair("y = gradred.allreduce(x)", "w.Allreduce(x, y)"),
    "allreduce, out=": Pair("gradred.allreduce(x, out=y)", "w.Allreduce(x, y)"),
    "allreduce_many of 4": Pair(
        "gradred.allreduce_many([x, x, x, x], out=[y, z, m, n])",
        "[w.Allreduce(x, one) for one in (y, z, m, n)]",
    ),
    "iallreduce, wait": Pair("y = gradred.iallreduce(x).wait()", "w.Iallreduce(x, y).Wait()"),
    "reduce_scatter_block": Pair(
        "y = gradred.reduce_scatter_block(all)", "w.Reduce_scatter_block(all, y)"
    ),
    "allgather": Pair("all = gradred.allgather(x)", "w.Allgather(x, all)", "all"),
    "bcast": Pair("y = gradred.bcast(x)", "w.Bcast(x); y = x"),
    "scan": Pair("y = gradred.scan(x)", "w.Scan(x, y)"),
    "iscan, wait": Pair("y = gradred.iscan(x).wait()", "w.Iscan(x, y).Wait()"),
    "gather": Pair("got = gradred.gather(x)", "w.Gather(x, all); got = at_root", "got"),
    "igather, wait": Pair(
        "got = gradred.igather(x).wait()", "w.Igather(x, all).Wait(); got = at_root", "got"
    ),
    "scatter": Pair("y = gradred.scatter(rows)", "w.Scatter(all, y)"),
    "iscatter, wait": Pair("y = gradred.iscatter(rows).wait()", "w.Iscatter(all, y).Wait()"),
}


def arguments() -> argparse.Namespace:
    parser = options("every call against the MPI's", rounds=15, seconds=60, sizes=SIZES)
    parser.add_argument("--calls", nargs="+", choices=CALLS, metavar="CALL", default=list(CALLS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["f4"])
    parser.add_argument("--between", choices=BETWEEN, default="nothing")
    return read(parser)


def names_of(comms: dict[str, MPI.Intracomm], count: int, dtype: str) -> dict[str, Any]:
    """Return what the statements name: arrays whose sums are exact, and the communicators."""
    size, rank = comms["w"].size, comms["w"].rank
    one = [np.full(count, value, dtype) for value in (rank + 1, 0, rank + 2, 0, 0)]
    whole = np.asarray(np.arange(size * count) % 64, dtype)
    names: dict[str, Any] = dict(zip("xyzmn", one, strict=True))
    names |= {"all": whole, "more": np.zeros_like(whole)}
    names |= {"rows": whole if rank == 0 else one[0], "at_root": whole if rank == 0 else None}
    return names | comms | {"gradred": gradred, "IN_PLACE": MPI.IN_PLACE}


def seconds_of(code: Any, names: dict[str, Any], block: int, comm: MPI.Intracomm) -> list[float]:
    """Return the time of a call in a block of them, on the slowest rank."""
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(block):
        exec(code, names)
    return [float(comm.allreduce((time.perf_counter() - begin) / block, MPI.MAX))]


class Between:
    """What a rank does before each call."""

    def __init__(self, what: str, rank: int) -> None:
        self._is_late = what == "arrivals"
        self._random = random.Random(rank)
        self._data = np.ones(1 << 19)  # float64: 4 MiB

    def seconds_of(
        self, code: Any, names: dict[str, Any], block: int, comm: MPI.Intracomm
    ) -> list[float]:
        """Return the time of each call, from the last rank's arrival to its last result."""
        begins, ends = np.empty(block), np.empty(block)
        comm.Barrier()
        for k in range(block):
            self._do()
            begins[k] = time.perf_counter()
            exec(code, names)
            ends[k] = time.perf_counter()
        for times in (begins, ends):
            comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
        return [float(one) for one in ends - begins]

    def _do(self) -> None:
        if self._is_late:
            end = time.perf_counter() + self._random.uniform(0, LATEST)
            while time.perf_counter() < end:
                pass
        else:
            self._data *= 1.0


def made(
    cell: tuple[str, str, int], codes: dict[str, Any], order: Sequence[str], comms: Any
) -> dict[str, dict[str, Any]]:
    """Make the arrays of both in this order, run each once, and compare what they give."""
    call, dtype, nbytes = cell
    pair, comm = CALLS[call], comms["w"]
    count = max(1, nbytes // np.dtype(dtype).itemsize)
    names = {who: names_of(comms, count, dtype) for who in order}
    for who in order:
        exec(pair.make.replace("COMM", "g" if who == "gradred" else "w"), names[who])
        exec(codes[who], names[who])
    of_root = call in ("Comm.Reduce", "Comm.Gather", "gather", "igather, wait")
    undefined = (comm.rank > 0 and of_root) or (comm.rank == 0 and "Exscan" in call)
    read = codes if pair.result and not undefined else {}
    results = [np.asarray(names[who][pair.result], dtype).tobytes() for who in read]
    if comm.allreduce(len(set(results)) > 1, MPI.LOR):
        raise SystemExit(f"{call} of {nbytes} bytes, {dtype}: the results differ")
    return names


def free(names: dict[str, dict[str, Any]]) -> None:
    for own in names.values():
        if "p" in own:
            own["p"].Free()


def calls_of(
    timed: Any, codes: dict[str, Any], names: dict[str, Any], comm: MPI.Intracomm, seconds: float
) -> int:
    """Return how many calls take so long."""
    for calls in (3, 10):  # the first calls take longer
        begin = time.perf_counter()
        for who, code in codes.items():
            timed(code, names[who], calls, comm)
        once = comm.allreduce((time.perf_counter() - begin) / calls / 2, MPI.MAX)
        if once > LONG:
            break
    return max(2, min(200, int(seconds / once)))


def measure(
    cell: tuple[str, str, int], given: argparse.Namespace, seconds: float, comms: Any
) -> dict[str, Any]:
    """Return the row of a call, a type and a length; `seconds` is the time for all its rounds."""
    call, dtype, nbytes = cell
    pair, comm = CALLS[call], comms["w"]
    codes = {"gradred": compile(pair.ours, call, "exec"), "mpi": compile(pair.mpis, call, "exec")}
    timed = seconds_of
    if given.between != "nothing":
        timed = Between(given.between, comm.rank).seconds_of
    times: dict[str, list[list[float]]] = {who: [] for who in codes}
    block, third = 0, -(-given.rounds // 3)
    names: dict[str, dict[str, Any]] = {}
    for turn in range(given.rounds):
        order = [*codes] if turn % 2 else [*codes][::-1]
        if turn % third == 0:
            free(names)
            names = made(cell, codes, order, comms)
            block = block or calls_of(timed, codes, names, comm, seconds / given.rounds / 2)
        for who in order:
            times[who].append(timed(codes[who], names[who], block, comm))
    free(names)
    rounds_us = {who: [1e6 * statistics.median(one) for one in own] for who, own in times.items()}
    ratios = sorted(b / a for a, b in zip(rounds_us["gradred"], rounds_us["mpi"], strict=True))
    tenth = len(ratios) // 10
    return {
        "call": call,
        "dtype": dtype,
        "bytes": nbytes,
        "us": {who: statistics.median(us) for who, us in rounds_us.items()},
        "worst_us": {who: 1e6 * max(map(max, own)) for who, own in times.items()},
        "ratio": statistics.median(ratios),
        "ratio_p10": ratios[tenth],
        "ratio_p90": ratios[-1 - tenth],
        "rounds_us": rounds_us,
    }


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given)) | {"limit": LIMIT}
    own = world.Dup()
    comms = {"g": gradred.Comm(own), "w": own, "d": world.Dup()}  # what is the MPI's is one call
    for comm in (None, comms["g"], comms["d"]):  # before a blocking call the MPI carries calls out
        gradred.Allreduce(MPI.IN_PLACE, np.zeros(1), comm=comm)
    cells = list(itertools.product(given.calls, given.dtypes, given.sizes))
    columns = "us of gradred and the MPI; ratio, 10-90 % of rounds; worst us"
    say(world, f"# {mpi_name()}, {world.size} ranks; {columns}")
    rows = record["rows"] = []
    for cell in cells:
        row = measure(cell, given, given.seconds / len(cells), comms)
        rows.append(row)
        times = f"{row['us']['gradred']:10.2f} {row['us']['mpi']:10.2f} {row['ratio']:7.2f}"
        spread = f"{row['ratio_p10']:.2f}-{row['ratio_p90']:.2f}"
        worst = f"{row['worst_us']['gradred']:.0f} {row['worst_us']['mpi']:.0f}"
        mark = "  surely below" if row["ratio_p90"] < LIMIT else "  below"
        mark = mark if row["ratio"] < LIMIT else ""
        say(world, f"{cell[0]:34} {cell[1]} {cell[2]:9} {times}  {spread}  {worst}{mark}")
    low = [row for row in rows if row["ratio"] < LIMIT]
    low.sort(key=lambda row: float(row["ratio"]))
    record["below"] = [[row[k] for k in ("call", "dtype", "bytes", "ratio")] for row in low]
    record["mean"] = statistics.geometric_mean(row["ratio"] for row in rows)
    record["surely_below"] = sum(row["ratio_p90"] < LIMIT for row in rows)
    counts = f"{len(low)} of {len(rows)} below {LIMIT}, {record['surely_below']} surely"
    say(world, f"# geometric mean {record['mean']:.2f}; {counts}")
    if given.json and world.rank == 0:
        write_json(given.json, record)
    for name in ("w", "d"):
        comms[name].Free()
    return 0


if __name__ == "__main__":
    sys.exit(main())
