"""Measure the processor time of a call by the form of its buffers: gradred's against mpi4py's.

    gradred run -np 1 python benchmarks/forms.py --json out.json

One rank (COMM_SELF) has nobody to communicate with, so the time is that of the call: it reads the
buffers and copies 8 bytes. The forms are those of tests/forms.py, which are mpi4py's. Input and
result have the same form, unless a call cannot write to it: then the result is an array. Two forms
are added: arrays of long double, which the MPI reduces, and empty ones. Calls that pass arguments
by name, or roots of NumPy's, are timed with few forms. Each round times a block of calls of both,
in turn; the time of other programs does not count. Before anything is timed, both must have given
the same result. `Iallgather` and `Ibcast` are mpi4py's own methods.

The JSON record (`schema` = "gradred-forms/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    rows      [{form, call, us{gradred, mpi4py}, ratio, rounds_us{gradred, mpi4py}[rounds]}]
    worst     {median, highest}: of the ratios of all rows

`us` are medians, and `ratio` is the median over the rounds of gradred's time divided by mpi4py's in
that round.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from timeit import Timer
from typing import Any, NamedTuple

import numpy as np
from arguments import options, parse_once, read
from mpi4py import MPI

import gradred
from gradred.bench.machine import describe, mpi_name
from gradred.bench.rank_zero import say, write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from forms import FORMS, Buffer, Form, Numbers

SCHEMA = "gradred-forms/1"
CALLS = {
    "Allreduce": "c.Allreduce(s, r)",
    "Iallreduce": "c.Iallreduce(s, r).Wait()",
    "Reduce_scatter_block": "c.Reduce_scatter_block(s, r)",
    "Ireduce_scatter_block": "c.Ireduce_scatter_block(s, r).Wait()",
    "Allgather": "c.Allgather(s, r)",
    "Iallgather": "c.Iallgather(s, r).Wait()",
    "Bcast": "c.Bcast(s)",
    "Ibcast": "c.Ibcast(s).Wait()",
    "Scan": "c.Scan(s, r)",
    "Exscan": "c.Exscan(s, r)",
    "Iscan": "c.Iscan(s, r).Wait()",
    "Iexscan": "c.Iexscan(s, r).Wait()",
    "Allreduce_init": "p()",
}
BY_NAME = {
    "Allreduce, both by name": "c.Allreduce(sendbuf=s, recvbuf=r)",
    "Allreduce, all by name, op first": "c.Allreduce(op=MAX, recvbuf=r, sendbuf=s)",
    "Allreduce, recvbuf by name": "c.Allreduce(s, recvbuf=r)",
    "Iallreduce, both by name": "c.Iallreduce(sendbuf=s, recvbuf=r).Wait()",
    "Reduce_scatter_block, both by name": "c.Reduce_scatter_block(sendbuf=s, recvbuf=r)",
    "Allgather, both by name": "c.Allgather(sendbuf=s, recvbuf=r)",
    "Scan, both by name": "c.Scan(sendbuf=s, recvbuf=r)",
    "Bcast, all by name": "c.Bcast(buf=s, root=0)",
    "Bcast, root of NumPy": "c.Bcast(s, root=ROOT)",
}
FORMS_BY_NAME = ("x", "[x, type]", "[x, count, type]")


def of_array(change: Callable[[Numbers], Numbers]) -> Form:
    def make(x: Numbers, blocks: int) -> Buffer:
        del blocks
        own = change(x)
        return Buffer(own, own)

    return Form(make)


MEASURED = FORMS | {
    "x of long double": of_array(lambda x: x.astype("longdouble")),
    "x, empty": of_array(lambda x: x[:0].copy()),
}


def arguments() -> argparse.Namespace:
    parser = options("processor time of calls by the form of their buffers", rounds=15, seconds=120)
    parser.add_argument(
        "--forms", nargs="+", choices=MEASURED, metavar="FORM", default=list(MEASURED)
    )
    calls = CALLS | BY_NAME
    parser.add_argument("--calls", nargs="+", choices=calls, metavar="CALL", default=list(calls))
    return read(parser)


class Timed(NamedTuple):
    """What to time, the bytes of its result, and what it has to free."""

    timer: Timer
    result: bytes
    persistent: MPI.Prequest | None


def timed(form: Form, call: str, comm: MPI.Intracomm) -> Timed:
    """Prepare a call, and make it twice."""
    x = np.full(1, 3.0)
    send = form.make(x, 1)
    recv = (form if form.writable else FORMS["x"]).make(np.full(1, 7.0), 1)
    constants = {"MAX": MPI.MAX, "ROOT": np.int64(0)}
    names: dict[str, Any] = {"c": comm, "s": send.spec, "r": recv.spec, "p": None} | constants
    statement = (CALLS | BY_NAME)[call]
    if call == "Allreduce_init":
        names["p"] = comm.Allreduce_init(send.spec, recv.spec)
        if not isinstance(comm, gradred.Comm):
            statement = "p.Start(); p.Wait()"
    made = Timer(statement, globals=names, timer=time.process_time)
    made.timeit(2)
    return Timed(made, recv.elements.tobytes(), names["p"])


def measure(form: str, call: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the row of one form and call; `seconds` is the time for all of its rounds."""
    comms = {"gradred": gradred.Comm(MPI.COMM_SELF), "mpi4py": MPI.COMM_SELF}
    made = {who: timed(MEASURED[form], call, comm) for who, comm in comms.items()}
    if len({each.result for each in made.values()}) != 1:
        raise SystemExit(f"{form}, {call}: the results differ")
    timers = {who: each.timer for who, each in made.items()}
    once = max(each.timeit(20) / 20 for each in timers.values())
    block = max(50, int(seconds / rounds / len(timers) / once))
    times: dict[str, list[float]] = {who: [] for who in timers}
    for turn in range(rounds):
        for who in [*timers] if turn % 2 else [*timers][::-1]:
            times[who].append(timers[who].timeit(block) / block * 1e6)
    for each in made.values():
        if each.persistent is not None:
            each.persistent.Free()
    ratios = [a / b for a, b in zip(times["gradred"], times["mpi4py"], strict=True)]
    return {
        "form": form,
        "call": call,
        "us": {who: statistics.median(each) for who, each in times.items()},
        "ratio": statistics.median(ratios),
        "rounds_us": times,
    }


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    if world.size != 1:
        raise SystemExit("it measures one rank: gradred run -np 1 ...")
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["rows"] = rows = []
    say(world, f"# one rank, {mpi_name()}; us of processor time per call, median of rounds")
    pairs = [
        (form, call)
        for form, call in itertools.product(given.forms, given.calls)
        if call in CALLS or form in FORMS_BY_NAME
    ]
    for form, call in pairs:
        row = measure(form, call, given.rounds, given.seconds / len(pairs))
        rows.append(row)
        ours, theirs = row["us"]["gradred"], row["us"]["mpi4py"]
        times = f"{ours:7.3f} gradred {theirs:7.3f} mpi4py {row['ratio']:6.2f}"
        say(world, f"{form:34} {call:34} {times}{'  above 1' * (row['ratio'] > 1)}")
    ratios = [row["ratio"] for row in rows]
    record["worst"] = {"median": statistics.median(ratios), "highest": max(ratios)}
    say(world, f"# ratios: median {statistics.median(ratios):.2f}, highest {max(ratios):.2f}")
    if given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
