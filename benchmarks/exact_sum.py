"""Measure `gradred.exact_sum` against `numpy.sum` followed by an Allreduce of one number.

    gradred run -np 2 python benchmarks/exact_sum.py --json out.json

Each rank has the elements of the table, of these kinds: of one size (a normal distribution), of
some sizes (exponents spread over 120 powers of two) and of all sizes (over the type's whole range).
Each round times both on equal input, in turn; the ranks begin together, and the slowest rank's time
counts. Before anything is timed, the exact sum must be that of rational numbers.

The JSON record (`schema` = "gradred-exact-sum/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    rows      [{dtype, kind, elements, ms{exact_sum, numpy}, ratio{median, p10, p90}}]

`elements` are those of one rank, `ms` medians in milliseconds, `ratio` the time of the exact sum in
times of the other, round by round. Exit status: 0 done; 1 a sum was wrong; 2 usage.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from arguments import options, parse_once, read
from mpi4py import MPI

import gradred
from gradred.bench.machine import describe, mpi_name
from gradred.bench.rank_zero import say, write_json

SCHEMA = "gradred-exact-sum/1"
SIZES = (1000, 100_000, 10_000_000)
Floats = npt.NDArray[Any]


def spread(rng: np.random.Generator, count: int, low: int, high: int) -> Floats:
    return np.ldexp(rng.standard_normal(count), rng.integers(low, high, count))


KINDS: dict[str, Callable[[np.random.Generator, int, str], Floats]] = {
    "of one size": lambda rng, count, _: rng.standard_normal(count),
    "of some sizes": lambda rng, count, _: spread(rng, count, -60, 60),
    "of all sizes": lambda rng, count, dtype: spread(
        rng, count, *((-140, 100) if dtype == "float32" else (-1060, 990))
    ),
}


def seconds_of(function: Callable[[], object], comm: MPI.Intracomm) -> float:
    comm.Barrier()
    begin = time.perf_counter()
    function()
    return comm.allreduce(time.perf_counter() - begin, MPI.MAX)


def is_right(comm: MPI.Intracomm, x: Floats) -> bool:
    """Whether the exact sum is that of rational numbers, on all ranks."""
    few = x[:5000]
    found = gradred.exact_sum(few, comm=comm)
    total = sum(comm.allgather(sum(map(Fraction, few.tolist()), Fraction())), Fraction())
    away = abs(Fraction(float(found)) - total)
    around = [np.nextafter(found, x.dtype.type(way)) for way in (-np.inf, np.inf)]
    nearest = all(away <= abs(Fraction(float(one)) - total) for one in around)
    return bool(comm.allreduce(nearest, MPI.LAND))


def measured(comm: gradred.Comm, x: Floats, rounds: int) -> dict[str, Any]:
    one = np.empty((), x.dtype)

    def by_numpy() -> None:
        MPI.Intracomm.Allreduce(comm, x.sum(), one)

    ways = {"exact_sum": lambda: gradred.exact_sum(x, comm=comm), "numpy": by_numpy}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name in sorted(ways, reverse=turn % 2 == 1):
            spent = seconds_of(ways[name], comm)
            if turn > 0:
                times[name].append(spent)
    ratios = sorted(a / b for a, b in zip(times["exact_sum"], times["numpy"], strict=True))
    tenth = len(ratios) // 10
    return {
        "ms": {name: 1e3 * statistics.median(found) for name, found in times.items()},
        "ratio": {
            "median": statistics.median(ratios),
            "p10": ratios[tenth],
            "p90": ratios[-1 - tenth],
        },
    }


def parsed() -> argparse.Namespace:
    return read(options(__doc__ or "", rounds=15, sizes=SIZES))


def main() -> int:
    comm = gradred.Comm(MPI.COMM_WORLD)
    given = parse_once(parsed, MPI.COMM_WORLD)
    rows = []
    say(comm, f"# {mpi_name()}, {comm.size} ranks")
    say(
        comm,
        f"{'type':8} {'kind':14} {'elements':>10} {'exact ms':>9} {'numpy ms':>9} {'ratio':>6}"
        "  p10-p90",
    )
    for dtype in ("float32", "float64"):
        for kind, make in KINDS.items():
            for elements in given.sizes:
                x = make(np.random.default_rng(comm.rank), elements, dtype).astype(dtype)
                if not is_right(comm, x):
                    say(comm, f"{dtype} {kind}: the exact sum is wrong")
                    return 1
                row = {"dtype": dtype, "kind": kind, "elements": elements}
                row |= measured(comm, x, given.rounds)
                rows.append(row)
                ms, ratio = row["ms"], row["ratio"]
                say(
                    comm,
                    f"{dtype:8} {kind:14} {elements:10} {ms['exact_sum']:9.3f} {ms['numpy']:9.3f} "
                    f"{ratio['median']:6.2f}  {ratio['p10']:.2f}-{ratio['p90']:.2f}",
                )
    record = {"schema": SCHEMA} | describe(comm, vars(given)) | {"rows": rows}
    if given.json and comm.rank == 0:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
