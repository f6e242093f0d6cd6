"""Compare two builds of gradred, to see whether a change made anything faster or slower.

    python benchmarks/compare_builds.py OLD/src NEW/src -np 2 --json out.json
    python benchmarks/compare_builds.py OLD/src NEW/src --paths messages --sizes 1048576 67108864
    python benchmarks/compare_builds.py OLD/src NEW/src -np 1 --paths reduction --types float16

The path "reduction" is no Allreduce, but the computation of one rank in it: target = a + b. Its
unit is processor seconds, which other programs affect least.

Each argument is a folder with the package `gradred` and its extension. In each round, in
alternating order, each build gets a job of its own on the same MPI. The job times Allreduce of
several sizes through shared memory and over messages: blocks of calls, the mean of a block on the
slowest rank, the median over the blocks. `ratio` is the first build's time divided by the second's,
round by round: above 1, the second is faster. A job may run on near or on far cores, so rounds
differ more than the blocks of one job. Take many rounds.

The JSON record (`schema` = "gradred-compare-builds/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}: of the first job
    builds    [first, second], as --names says
    rows      [{path, dtype, bytes, us[2], ratio, ratio_p10, ratio_p90, rounds_us[2][rounds]}]
    flag_us   [2][rounds]: the time of one signal between ranks 0 and 1 in each job
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path
from timeit import Timer
from typing import Any

from arguments import options, read

SCHEMA = "gradred-compare-builds/1"
SIZES = (8, 64, 1024, 16384, 1 << 20)
PATHS = {"shared memory": "1", "messages": "0", "reduction": ""}  # values of GRADRED_SHM
BLOCKS = 7
RECORDED = ("ranks", "rounds", "seconds", "paths", "sizes", "types")  # arguments in the record


def arguments() -> argparse.Namespace:
    parser = options("compare two builds of gradred", rounds=7, seconds=3.0, sizes=list(SIZES))
    parser.add_argument("builds", nargs=2, type=Path, metavar="FOLDER")
    parser.add_argument("--names", nargs=2, default=["first", "second"])
    parser.add_argument("-np", dest="ranks", type=int, default=2)
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS)[:2])
    parser.add_argument("--types", nargs="+", metavar="TYPE", default=["float32"])
    return read(parser, least_rounds=1)


def measure(seconds: float, paths: list[str], sizes: list[int], types: list[str]) -> None:
    """Run one job: rank 0 prints a line of JSON."""
    import ml_dtypes
    import numpy as np
    from mpi4py import MPI

    import gradred
    from gradred import _core
    from gradred.bench import machine
    from gradred.bench.timing import block_length, interleave, microseconds

    world = MPI.COMM_WORLD
    times = []
    each = seconds / len(paths) / len(sizes) / len(types) / BLOCKS
    record = machine.describe(world, {})
    latency = getattr(machine, "one_way_latency", None) or machine.flag_time  # in older builds
    record["flag_us"] = (latency(world) or {"us": None})["us"]
    for path in paths:
        os.environ["GRADRED_SHM"] = PATHS[path] or "1"
        comm = gradred.Comm(world.Dup())
        for name, nbytes in product(types, sizes):
            kind = np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))
            x = np.full(nbytes // kind.itemsize, world.rank + 1, kind)
            y = np.empty_like(x)
            comm.Allreduce(x, y)
            assert (y == kind.type(world.size * (world.size + 1) // 2)).all()
            timer = Timer("comm.Allreduce(x, y)", globals={"comm": comm, "x": x, "y": y})
            if path == "reduction":
                views = [array.view(np.uint8) for array in (y, x, x.copy())]
                reduce = partial(_core.reduce_pair, "sum", name, *views)
                timer = Timer("reduce()", timer=time.thread_time, globals={"reduce": reduce})
            block = block_length(timer, each, world)
            means = interleave([timer], BLOCKS, block, world)
            times.append([path, name, nbytes, microseconds(means[:, 0])])
    record["times"] = times
    if world.rank == 0:
        print("RECORD " + json.dumps(record), flush=True)


def job(build: Path, given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "gradred", "run", "-np", str(given.ranks), "--no-prefix"]
    what = json.dumps([given.seconds, given.paths, given.sizes, given.types])
    command += [sys.executable, __file__, "--measure", what]
    variables = os.environ | {"PYTHONPATH": str(build.absolute())}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "RECORD " in line]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{build}: the job failed\n{done.stderr}")
    return dict(json.loads(lines[0].split("RECORD ", 1)[1]))


def rows_of(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each path, type and size, from the records [build][round]."""
    import numpy as np

    from gradred.bench.timing import ratio

    rows = []
    for index, (path, name, nbytes, _) in enumerate(rounds[0][0]["times"]):
        us = [np.array([record["times"][index][3] for record in build]) for build in rounds]
        median, low, high = ratio(us[0], us[1])
        rows.append(
            {
                "path": path,
                "dtype": name,
                "bytes": nbytes,
                "us": [float(np.median(one)) for one in us],
                "ratio": median,
                "ratio_p10": low,
                "ratio_p90": high,
                "rounds_us": [one.tolist() for one in us],
            }
        )
    return rows


def main() -> int:
    given = arguments()
    rounds: list[list[dict[str, Any]]] = [[], []]
    for turn in range(given.rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            rounds[which].append(job(given.builds[which], given))
    record: dict[str, Any] = {"schema": SCHEMA, "builds": given.names} | rounds[0][0]
    del record["times"]
    record["arguments"] = {key: getattr(given, key) for key in RECORDED}
    record["flag_us"] = [[one["flag_us"] for one in build] for build in rounds]
    record["rows"] = rows = rows_of(rounds)
    print(f"# us per call: {given.names[0]}, {given.names[1]}; ratio of the two, 10-90 %")
    for row in rows:
        times = f"{row['us'][0]:10.2f} {row['us'][1]:10.2f}"
        spread = f"{row['ratio_p10']:.2f}-{row['ratio_p90']:.2f}"
        what = f"{row['path']:14}{row['dtype']:14}{row['bytes']:9}"
        print(f"{what}{times} {row['ratio']:6.2f}  {spread}")
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(*json.loads(sys.argv[2]))
    else:
        sys.exit(main())
