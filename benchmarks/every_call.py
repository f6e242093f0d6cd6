"""Measure every call of gradred against the MPI's own method that does the same.

    gradred run -np 2 python benchmarks/every_call.py --json out.json
    gradred run -np 2 python benchmarks/every_call.py --calls gather scatter --sizes 8 1024

Each call of `gradred.Comm` and each function on arrays is one row of CALLS, beside the method of
mpi4py's communicator with the same meaning, on float32 arrays. A function that makes its result is
compared with a method that writes into memory that is there. In each round each of the two runs a
block of calls, in alternating order, and the slowest rank's time counts. Before anything is timed,
both must have given the same result (a barrier has none).

The JSON record (`schema` = "gradred-every-call/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    rows      [{call, bytes, us{gradred, mpi}, ratio, ratio_p10, ratio_p90, rounds_us{...}[rounds]}]
    below     [[call, bytes, ratio]]: the rows whose ratio is below 0.95, the lowest first
    mean      the geometric mean of all ratios

`bytes` are those of one rank's array, `us` medians. `ratio` is the median over the rounds of the
MPI's time divided by gradred's: above 1, gradred is faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any, NamedTuple

import numpy as np
from arguments import options, parse_once, read
from mpi4py import MPI

import gradred
from gradred.bench.machine import describe, mpi_name
from gradred.bench.rank_zero import say, write_json

SCHEMA = "gradred-every-call/1"
SIZES = (8, 1024, 16384, 262144, 1 << 20, 8 << 20)
LIMIT = 0.95


class Pair(NamedTuple):
    """A call of gradred and one of the MPI, and the names of what they give."""

    ours: str
    mpis: str
    result: str = "y"


def method(call: str, result: str = "y") -> Pair:
    """The same method of both communicators."""
    return Pair(f"g.{call}", f"w.{call}", result)


CALLS = {
    "Comm.Allreduce": method("Allreduce(x, y)"),
    "Comm.Allreduce in place": method("Allreduce(IN_PLACE, z)", "z"),
    "Comm.Iallreduce, Wait": method("Iallreduce(x, y).Wait()"),
    "Comm.Reduce_scatter_block": method("Reduce_scatter_block(all, y)"),
    "Comm.Ireduce_scatter_block, Wait": method("Ireduce_scatter_block(all, y).Wait()"),
    "Comm.Allgather": method("Allgather(x, all)", "all"),
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
    return read(parser)


def names_of(comms: dict[str, MPI.Intracomm], count: int) -> dict[str, Any]:
    """Return what the statements name: arrays whose sums are exact, and the communicators."""
    size, rank = comms["w"].size, comms["w"].rank
    one = [np.full(count, value, "f4") for value in (rank + 1, 0, rank + 2, 0, 0)]
    whole = np.arange(size * count, dtype="f4") % 64
    names: dict[str, Any] = dict(zip("xyzmn", one, strict=True))
    names |= {"all": whole, "more": np.zeros_like(whole)}
    names |= {"rows": whole if rank == 0 else one[0], "at_root": whole if rank == 0 else None}
    return names | comms | {"gradred": gradred, "IN_PLACE": MPI.IN_PLACE}


def seconds_of(code: Any, names: dict[str, Any], block: int, comm: MPI.Intracomm) -> float:
    """Return the time of a call in a block of them, on the slowest rank."""
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(block):
        exec(code, names)
    return float(comm.allreduce((time.perf_counter() - begin) / block, MPI.MAX))


def measure(call: str, nbytes: int, rounds: int, seconds: float, comms: Any) -> dict[str, Any]:
    """Return the row of one call; `seconds` is the time for all of its rounds."""
    pair, comm = CALLS[call], comms["w"]
    codes = {"gradred": compile(pair.ours, call, "exec"), "mpi": compile(pair.mpis, call, "exec")}
    names = {who: names_of(comms, max(1, nbytes // 4)) for who in codes}
    for who, code in codes.items():
        exec(code, names[who])
    results = [np.asarray(names[who][pair.result], "f4").tobytes() for who in codes if pair.result]
    if comm.rank > 0 and call in ("Comm.Reduce", "Comm.Gather", "gather", "igather, wait"):
        results = []  # only the root has a result
    if comm.rank == 0 and "Exscan" in call:
        results = []  # undefined on the first rank
    if comm.allreduce(len(set(results)) > 1, MPI.LOR):
        raise SystemExit(f"{call} of {nbytes} bytes: the results differ")
    once = max(seconds_of(code, names[who], 3, comm) for who, code in codes.items())
    block = max(2, min(200, int(seconds / rounds / 2 / once)))
    times: dict[str, list[float]] = {who: [] for who in codes}
    for turn in range(rounds):
        for who in [*codes] if turn % 2 else [*codes][::-1]:
            times[who].append(1e6 * seconds_of(codes[who], names[who], block, comm))
    ratios = sorted(b / a for a, b in zip(times["gradred"], times["mpi"], strict=True))
    tenth = len(ratios) // 10
    return {
        "call": call,
        "bytes": nbytes,
        "us": {who: statistics.median(us) for who, us in times.items()},
        "ratio": statistics.median(ratios),
        "ratio_p10": ratios[tenth],
        "ratio_p90": ratios[-1 - tenth],
        "rounds_us": times,
    }


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    comms = {"g": gradred.Comm(world), "w": world.Dup(), "d": world.Dup()}
    for comm in (None, comms["g"], comms["d"]):  # before a blocking call the MPI carries calls out
        gradred.Allreduce(MPI.IN_PLACE, np.zeros(1), comm=comm)
    cells = [(call, nbytes) for nbytes in given.sizes for call in given.calls]
    say(world, f"# {mpi_name()}, {world.size} ranks; us: gradred's, the MPI's; ratio, 10-90 %")
    rows = record["rows"] = []
    for call, nbytes in cells:
        row = measure(call, nbytes, given.rounds, given.seconds / len(cells), comms)
        rows.append(row)
        times = f"{row['us']['gradred']:10.2f} {row['us']['mpi']:10.2f} {row['ratio']:7.2f}"
        spread = f"{row['ratio_p10']:.2f}-{row['ratio_p90']:.2f}"
        mark = "  below" if row["ratio"] < LIMIT else ""
        say(world, f"{call:34} {nbytes:9} {times}  {spread}{mark}")
    low = sorted((row["ratio"], row["call"], row["bytes"]) for row in rows if row["ratio"] < LIMIT)
    record["below"] = [[call, nbytes, ratio] for ratio, call, nbytes in low]
    record["mean"] = statistics.geometric_mean(row["ratio"] for row in rows)
    say(world, f"# geometric mean {record['mean']:.2f}; {len(low)} of {len(rows)} below {LIMIT}")
    if given.json and world.rank == 0:
        write_json(given.json, record)
    for name in ("w", "d"):
        comms[name].Free()
    return 0


if __name__ == "__main__":
    sys.exit(main())
