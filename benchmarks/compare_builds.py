"""Compare two builds of gradred, to see whether a change made anything faster or slower.

    python benchmarks/compare_builds.py OLD/src NEW/src -np 2 --json out.json
    python benchmarks/compare_builds.py OLD/src NEW/src --paths messages --sizes 1048576 67108864
    python benchmarks/compare_builds.py OLD/src NEW/src -np 1 --paths reduction --types float16
    python benchmarks/compare_builds.py OLD/src NEW/src --paths named ddp bsp      (need PyTorch)
    python benchmarks/compare_builds.py OLD/src NEW/src --paths names --sizes 164864

The path "reduction" is no Allreduce, but the computation of one rank in it: target = a + b. Its
unit is processor seconds, which other programs affect least. "named" is an operation by name of
gradred.torch, from start to end. "names" are operations by name in flight together, on tensors of
1 KiB that have so many bytes in all. "ddp" is a step of DistributedDataParallel over gradred whose
gradients have so many bytes: layers of 256 x 256, at least one. "bsp" is a step whose gradients, of
layers of 1024 x 1024, are one vector of torch's memory, which Allreduce sums in place after
backward. These four have float32 only.

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
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from timeit import Timer
from typing import Any

from arguments import options, read

SCHEMA = "gradred-compare-builds/1"
SIZES = (8, 64, 1024, 16384, 1 << 20)
# Values of GRADRED_SHM.
PATHS = {
    "shared memory": "1",
    "messages": "0",
    "reduction": "1",
    "named": "1",
    "names": "1",
    "ddp": "1",
    "bsp": "1",
}
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


def blocking(comm: Any, kind: Any, nbytes: int) -> Callable[[], object]:
    """Return an Allreduce."""
    import numpy as np

    x = np.full(nbytes // kind.itemsize, comm.rank + 1, kind)
    y = np.empty_like(x)
    comm.Allreduce(x, y)
    assert (y == kind.type(comm.size * (comm.size + 1) // 2)).all()
    return partial(comm.Allreduce, x, y)


def reduction(comm: Any, kind: Any, nbytes: int) -> Callable[[], object]:
    """Return the computation of one rank."""
    import numpy as np

    from gradred import _core

    arrays = [np.full(nbytes // kind.itemsize, 1, kind) for _ in range(3)]
    return partial(_core.reduce_pair, "sum", kind.name, *(one.view(np.uint8) for one in arrays))


def named(comm: Any, kind: Any, nbytes: int) -> Callable[[], object]:
    """Return an operation by name."""
    import torch

    import gradred.torch as hvd

    hvd.init()
    tensor = torch.ones(nbytes // kind.itemsize)
    assert (hvd.allreduce(tensor, name=f"first.{nbytes}", op=hvd.Sum) == comm.size).all()
    name = f"timed.{nbytes}"
    return lambda: hvd.synchronize(hvd.allreduce_async_(tensor, name=name, op=hvd.Max))


def names(comm: Any, kind: Any, nbytes: int) -> Callable[[], object]:
    """Return operations by name, started one after the other."""
    import torch

    import gradred.torch as hvd

    hvd.init()
    tensors = {f"{nbytes}.{i}": torch.ones(256) for i in range(nbytes // 1024)}

    def step() -> None:
        handles = [hvd.allreduce_async_(x, name=name, op=hvd.Max) for name, x in tensors.items()]
        for handle in handles:
            hvd.synchronize(handle)

    return step


def ddp(comm: Any, kind: Any, nbytes: int) -> Callable[[], object]:
    """Return a step of DistributedDataParallel."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gradred")
    torch.set_num_threads(1)
    width = 256
    layers = max(1, nbytes // (width * width * kind.itemsize))
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    trained = torch.nn.parallel.DistributedDataParallel(model)
    x = torch.ones(4, width)
    return lambda: trained(x).sum().backward()


def bsp(comm: Any, kind: Any, nbytes: int) -> Callable[[], object]:
    """Return a step of training with an Allreduce."""
    import torch
    import trained
    from mpi4py import MPI

    torch.set_num_threads(1)
    width = 1024
    layers = max(1, nbytes // (width * width * kind.itemsize))
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    vector = trained.flattened(model).numpy()
    x = torch.ones(128, width)

    def step() -> None:
        vector.fill(0)
        model(x).sum().backward()
        comm.Allreduce(MPI.IN_PLACE, vector)

    for _ in range(40):  # in which data paths are chosen
        step()
    return step


CALLS = {"reduction": reduction, "named": named, "names": names, "ddp": ddp, "bsp": bsp}


def measure(seconds: float, paths: list[str], sizes: list[int], types: list[str]) -> None:
    """Run one job: rank 0 prints a line of JSON."""
    import ml_dtypes
    import numpy as np
    from blocks import block_length, interleave, microseconds
    from mpi4py import MPI

    import gradred
    from gradred.bench import machine

    world = MPI.COMM_WORLD
    times = []
    each = seconds / len(paths) / len(sizes) / len(types) / BLOCKS
    record = machine.describe(world, {})
    latency = getattr(machine, "one_way_latency", None) or machine.flag_time  # in older builds
    record["flag_us"] = (latency(world) or {"us": None})["us"]
    for path in paths:
        os.environ["GRADRED_SHM"] = PATHS[path]
        comm = gradred.Comm(world.Dup())
        for name, nbytes in product(types, sizes):
            kind = np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))
            call = CALLS.get(path, blocking)(comm, kind, nbytes)
            clock = time.thread_time if path == "reduction" else time.perf_counter
            timer = Timer("call()", timer=clock, globals={"call": call})
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
