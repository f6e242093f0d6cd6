"""Measure reductions by two threads of one rank against one, without any call around them.

    python benchmarks/reduce_threads.py --json out.json

One process adds up 2 or 4 arrays of float32 or bfloat16 of each length of the table, as a rank does
whose peers' data lie in memory that it can read. The slices are those of GRADRED_THREADS=2. Each
round times blocks of both in turn, in alternating order. With `--wait` it begins when no other
program wants a core, or after these seconds. Before anything is timed, both results must have the
same bits.

The JSON record (`schema` = "gradred-reduce-threads/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    rows      [{dtype, inputs, bytes, us{1, 2}, ratio{median, p10, p90}, busy}]

`bytes` are those of one array, `us` medians of a reduction in microseconds, `ratio` how many times
as fast two threads are, round by round, `busy` how many rounds began while other programs ran.
Exit status: 0 done; 1 bits differ; 2 usage.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from arguments import options, read
from mpi4py import MPI

from gradred._util import cpu
from gradred.bench.machine import describe
from gradred.bench.rank_zero import write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import core_testing

SCHEMA = "gradred-reduce-threads/1"
SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
BLOCK_SECONDS = 0.02
NUMPYS = {"float32": "float32", "bfloat16": "uint16"}
Array = npt.NDArray[Any]


def arrays(dtype: str, inputs: int, size: int) -> list[Array]:
    rng = np.random.default_rng(inputs)
    made = [rng.standard_normal(size // 4).astype("float32") for _ in range(inputs)]
    if dtype == "float32":
        return made
    halves = [np.ascontiguousarray(one.view("uint16")[1::2]) for one in made]
    return [np.tile(one, 2) for one in halves]


def seconds_of(calls: int, dtype: str, target: Array, given: list[Array], threads: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        core_testing.reduce_many("sum", dtype, target, given, threads=threads)
    return (time.perf_counter() - begin) / calls


def is_idle(seconds: float) -> bool:
    """Wait until no other program wants a core, for these seconds at most."""
    end = time.perf_counter() + seconds
    while cpu.running(3) > 0:
        if time.perf_counter() > end:
            return False
    return True


def measured(dtype: str, inputs: int, size: int, rounds: int, wait: float) -> dict[str, Any] | None:
    """Return a row; None if the bits differ."""
    given = arrays(dtype, inputs, size)
    results = [np.zeros_like(given[0]) for _ in range(2)]
    for threads in (1, 2):
        core_testing.reduce_many("sum", dtype, results[threads - 1], given, threads=threads)
    if results[0].tobytes() != results[1].tobytes():
        return None
    target = results[0]
    calls = max(1, round(BLOCK_SECONDS / seconds_of(3, dtype, target, given, 1)))
    times: dict[int, list[float]] = {1: [], 2: []}
    busy = 0
    for turn in range(rounds):
        busy += not is_idle(wait)
        for threads in (1, 2) if turn % 2 == 0 else (2, 1):
            seconds_of(1, dtype, target, given, threads)  # the other one has left the caches so
            times[threads].append(seconds_of(calls, dtype, target, given, threads))
    ratios = sorted(one / two for one, two in zip(times[1], times[2], strict=True))
    tenth = len(ratios) // 10
    return {
        "dtype": dtype,
        "inputs": inputs,
        "bytes": size,
        "us": {str(threads): 1e6 * statistics.median(found) for threads, found in times.items()},
        "ratio": {
            "median": statistics.median(ratios),
            "p10": ratios[tenth],
            "p90": ratios[-1 - tenth],
        },
        "busy": busy,
    }


def parsed() -> argparse.Namespace:
    parser = options(__doc__ or "", rounds=21, sizes=SIZES)
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS")
    return read(parser)


def main() -> int:
    given = parsed()
    rows = []
    print(f"{'type':9} {'inputs':>6} {'bytes':>9} {'1 us':>9} {'2 us':>9} {'ratio':>6}  p10-p90")
    for dtype in NUMPYS:
        for inputs in (2, 4):
            for size in given.sizes:
                row = measured(dtype, inputs, size, given.rounds, given.wait)
                if row is None:
                    print(f"{dtype}, {inputs} arrays of {size} bytes: the bits differ")
                    return 1
                rows.append(row)
                us, ratio = row["us"], row["ratio"]
                print(
                    f"{dtype:9} {inputs:6} {size:9} {us['1']:9.1f} {us['2']:9.1f} "
                    f"{ratio['median']:6.2f}  {ratio['p10']:.2f}-{ratio['p90']:.2f}  "
                    f"busy {row['busy']}",
                    flush=True,
                )
    record = {"schema": SCHEMA} | describe(MPI.COMM_SELF, vars(given)) | {"rows": rows}
    if given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
