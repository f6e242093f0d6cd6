"""Measure the cost of the Python call: Allreduce of 8 bytes, gradred's against mpi4py's, and the
functions on arrays, of NumPy and, if PyTorch is installed, of tensors.

    gradred run -np 2 python benchmarks/call_cost.py --json out.json

On one rank (COMM_SELF) nothing is communicated, so the time is that of the call. With more ranks
COMM_WORLD is timed too. The calls run in alternating blocks. Each time is the mean over a block on
the slowest rank, and the median over the rounds. It includes the loop around the calls, some 10 ns.

The JSON record (`schema` = "gradred-call-cost/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    rows      [{ranks, call, statement, us, rounds_us[rounds], calls}]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from timeit import Timer
from typing import Any

import numpy as np
from arguments import options, parse_once, read
from blocks import block_length, interleave, microseconds
from mpi4py import MPI

import gradred
from gradred.bench.machine import describe, mpi_name
from gradred.bench.rank_zero import say, write_json

SCHEMA = "gradred-call-cost/1"
BLOCKING, PERSISTENT = "comm.Allreduce(x, y)", "p()"


def arguments() -> argparse.Namespace:
    parser = options("cost of an 8-byte Allreduce from Python", rounds=15, seconds=5.0)
    return read(parser, least_rounds=1)


def calls(plain: MPI.Intracomm) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return by name the statement to time, and the names that it uses."""
    comm = gradred.Comm(plain)
    x, y = np.ones(1), np.zeros(1)
    names = {"x": x, "y": y}
    found = {
        "mpi4py": (BLOCKING, names | {"comm": plain}),
        "gradred": (BLOCKING, names | {"comm": comm}),
        "mpi4py, persistent": ("p.Start(); p.Wait()", {"p": plain.Allreduce_init(x, y)}),
        "gradred, persistent": (PERSISTENT, {"p": comm.Allreduce_init(x, y)}),
    }
    names |= {"gradred": gradred, "c": comm, "whole": np.zeros(plain.size), "n": np.float64(1)}
    on_arrays = {
        "allreduce": "gradred.allreduce(x, out=y, comm=c)",
        "new": "gradred.allreduce(x, comm=c)",
        "bcast": "gradred.bcast(x, out=x, comm=c)",
        "allgather": "gradred.allgather(x, out=whole, comm=c)",
        "reduce_scatter": "gradred.reduce_scatter_block(whole, out=y, comm=c)",
        "iallreduce": "gradred.iallreduce(x, out=y, comm=c).wait()",
        "many": "gradred.allreduce_many([x], out=[y], comm=c)",
        "scalar": "gradred.allreduce(n, comm=c)",
    }
    found |= {name: (statement, names) for name, statement in on_arrays.items()}
    if importlib.util.find_spec("torch"):
        import torch

        tensors = names | {"x": torch.ones(1), "y": torch.ones(1)}
        for name in ("allreduce", "new", "iallreduce", "many"):
            found[f"torch, {name}"] = (on_arrays[name], tensors)
        found["torch, Allreduce"] = ("comm.Allreduce(x, y)", tensors | {"comm": comm})
    return found


def measure(plain: MPI.Intracomm, rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of one communicator; collective on it."""
    timed = calls(plain)
    timers = [Timer(statement, globals=names) for statement, names in timed.values()]
    each = seconds / rounds / len(timers)
    block = min(block_length(timer, each, plain) for timer in timers)
    times = interleave(timers, rounds, block, plain)
    for column, (name, (statement, _)) in zip(times.T, timed.items(), strict=True):
        yield {
            "ranks": plain.size,
            "call": name,
            "statement": statement,
            "us": microseconds(column),
            "rounds_us": (column * 1e6).tolist(),
            "calls": block,
        }
    for _, names in timed.values():
        if "p" in names:
            names["p"].Free()


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["rows"] = rows = []
    say(world, f"# 8 bytes from Python, {mpi_name()}; us per call, median of rounds")
    for plain in [MPI.COMM_SELF, MPI.COMM_WORLD][: 1 if world.size == 1 else 2]:
        for row in measure(plain, given.rounds, given.seconds / 2):
            rows.append(row)
            what = f"{row['call']:20} {row['statement']:50}"
            say(world, f"{row['ranks']:3} ranks  {what} {row['us']:8.3f}")
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
