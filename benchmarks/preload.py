"""Compare MPI_Allreduce of a C program under `gradred run --preload` with the MPI's own.

    python benchmarks/preload.py --json out.json [--ranks 2] [--seconds 1]

It compiles preload.c with the MPI's mpicc and starts it. In the program MPI_Allreduce is gradred's,
and PMPI_Allreduce the MPI's: both in turn, on the same buffers. Two more figures: what a call that
the library leaves to the MPI costs in addition, and what the library adds to a program's start.
The JSON record (`schema` = "gradred-preload/1"):

    date, arguments, ranks, machine{...}, mpi, gradred
    rows     [{bytes, us{preload, mpi}, ratio, ratio_p10, ratio_p90, rounds_us{preload, mpi}}]
             ratio: of a round's two times, its median over the rounds; above 1 gradred is faster
    mean, least     geometric mean and least value of the ratios
    through_ns      {preload, mpi}: the least time of a call that is left to the MPI, of all rounds
    start_ms        {with, without}: seconds of a whole job that calls MPI_Allreduce once, per round
    load_ms         {with, without}: the same of `true`
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import gradred
from gradred import launch
from gradred._util import cpu
from gradred.launch import preload

SCHEMA = "gradred-preload/1"
SOURCE = Path(__file__).with_name("preload.c")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="C programs under gradred run --preload")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each length")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--most", type=int, default=8 << 20, metavar="BYTES")
    parser.add_argument("--starts", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def job(program: str, words: list[str], ranks: int, preloads: bool) -> str:
    """Run the program under mpiexec; returns what it has printed."""
    mpi = launch.find_mpi()
    environment = launch.job_environment(mpi)
    if preloads:
        # mpiexec itself loads nothing: a shell sets the variable for each rank.
        words = ["env", f"{preload.VARIABLE}={preload.library()}", program, *words]
    else:
        words = [program, *words]
    command = [*launch.launcher_command(mpi, ranks), *words]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout


def wall_ms(command: list[str], preloads: bool, times: int) -> float:
    environment = dict(os.environ)
    if preloads:
        environment[preload.VARIABLE] = str(preload.library())
    begin = time.perf_counter()
    for _ in range(times):
        subprocess.run(command, check=True, env=environment)
    return 1e3 * (time.perf_counter() - begin) / times


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[round(part * (len(values) - 1))]


def rows_of(printed: str) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Return a row for each length, and the nanoseconds of a call that is left to the MPI."""
    found: dict[int, list[tuple[float, float]]] = {}
    through = {"preload": math.inf, "mpi": math.inf}
    for line in printed.splitlines():
        what, length, ours, theirs = line.split()
        if what == "allreduce":
            found.setdefault(int(length), []).append((1e6 * float(ours), 1e6 * float(theirs)))
        elif what == "through":
            through["preload"] = min(through["preload"], 1e9 * float(ours))
            through["mpi"] = min(through["mpi"], 1e9 * float(theirs))
    rows = []
    for size, times in found.items():
        ratios = [theirs / ours for ours, theirs in times]
        rounds = {"preload": [one[0] for one in times], "mpi": [one[1] for one in times]}
        rows.append(
            {
                "bytes": size,
                "us": {way: statistics.median(us) for way, us in rounds.items()},
                "ratio": statistics.median(ratios),
                "ratio_p10": quantile(ratios, 0.1),
                "ratio_p90": quantile(ratios, 0.9),
                "rounds_us": rounds,
            }
        )
    return rows, through


def starts(program: str, given: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Time whole jobs of one call, and a program that is no MPI's, with the library and without."""
    found: dict[str, dict[str, list[float]]] = {
        what: {"with": [], "without": []} for what in ("start_ms", "load_ms")
    }
    for turn in range(given.starts):
        for preloads in (turn % 2 == 0, turn % 2 == 1):
            way = "with" if preloads else "without"
            begin = time.perf_counter()
            job(program, ["0"], given.ranks, preloads)
            found["start_ms"][way].append(1e3 * (time.perf_counter() - begin))
            found["load_ms"][way].append(wall_ms(["/bin/true"], preloads, 10))
    return found


def main() -> None:
    given = arguments()
    mpi = launch.find_mpi()
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "preload")
        compiler = mpi.launcher.parent / "mpicc"
        subprocess.run([str(compiler), "-O2", "-o", program, str(SOURCE)], check=True)
        words = [str(given.seconds), str(given.rounds), str(given.most)]
        rows, through = rows_of(job(program, words, given.ranks, preloads=True))
        began = starts(program, given)
    for row in rows:
        us = row["us"]
        print(
            f"{row['bytes']:>10} B  gradred {us['preload']:9.2f} us   MPI {us['mpi']:9.2f} us   "
            f"ratio {row['ratio']:.2f} ({row['ratio_p10']:.2f} to {row['ratio_p90']:.2f})"
        )
    mean = statistics.geometric_mean([row["ratio"] for row in rows])
    print(f"mean ratio {mean:.2f}, least {min(row['ratio'] for row in rows):.2f}")
    longer = through["preload"] - through["mpi"]
    print(f"a call left to the MPI takes {longer:.1f} ns longer than {through['mpi']:.1f}")
    for what, times in began.items():
        more = statistics.median(times["with"]) - statistics.median(times["without"])
        print(f"{what}: {more:.2f} more than {statistics.median(times['without']):.2f}")
    if given.json:
        record = {
            "schema": SCHEMA,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "arguments": {**vars(given), "json": given.json.name},
            "ranks": given.ranks,
            "machine": {
                "cpu": cpu.model(),
                "architecture": platform.machine(),
                "cores": os.cpu_count(),
                "kernel": platform.release(),
            },
            "mpi": f"{mpi.family} {mpi.version}",
            "gradred": gradred.__version__,
            "rows": rows,
            "mean": mean,
            "least": min(row["ratio"] for row in rows),
            "through_ns": through,
            **began,
        }
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
