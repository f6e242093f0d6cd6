"""Measure the cost of GRADRED_DETERMINISTIC between hosts: 0, 1 and size, alternating in one job.

    .venv/bin/python benchmarks/determinism.py --out benchmarks/results

The hosts are namespaces of this machine, as in benchmarks/between_hosts.py, which explains the
limits of such times. On one host all three values choose the same plans. For each size the same
`Allreduce` runs in alternating blocks on three communicators, one for each value of the setting.
With 0 the plans are chosen by measurements of these hosts, and with 1 by round figures. With size
they are chosen from the plans that sum in one order. Every result is checked.

Writes determinism-MPI-Nranks-Nhosts-DATE.json for each layout (`schema` = "gradred-determinism/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    rows    [{bytes, calls, values{0, 1, size: {plan, us, rounds_us[rounds], ratio, ratio_p10,
              ratio_p90}}}]; ratio is its time divided by that of 1

Exit status: 0 done; 1 a run failed; 2 usage.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from timeit import Timer
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = "gradred-determinism/1"
VALUES = ("0", "1", "size")
LAYOUTS = {
    "2ranks-2hosts": (1, 1),
    "3ranks-3hosts": (1, 1, 1),
    "4ranks-2hosts": (2, 2),
    "4ranks-4hosts": (1, 1, 1, 1),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="what determinism costs between hosts")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", metavar="FOLDER")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc has it; or none")
    parser.add_argument("--seconds", type=float, default=30.0, help="each of the runs, about")
    parser.add_argument("--max", type=int, default=16 << 20, metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=9, help="per size; 3 at least")
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="one alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help=argparse.SUPPRESS)  # for ranks
    return parser.parse_args()


# ---- a rank of the job --------------------------------------------------------------------------


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows; collective on all ranks."""
    import numpy as np
    from blocks import block_length, interleave, microseconds
    from mpi4py import MPI

    import gradred
    from gradred import _core, config
    from gradred.bench.timing import ratio

    world = MPI.COMM_WORLD
    comms = []
    for value in VALUES:
        config.set("deterministic", value)
        comms.append(gradred.Comm(world.Dup()))
        comms[-1].Allreduce(MPI.IN_PLACE, np.zeros(1))
    sizes = [size for size in (8, 512, 4 << 10, 64 << 10, 1 << 20, 16 << 20) if size <= given.max]
    for size in sizes:
        x = np.full(size // 4, world.rank + 1, np.float32)
        ys = [np.zeros_like(x) for _ in comms]
        for comm, y in zip(comms, ys, strict=True):
            comm.Allreduce(x, y)
            if (y != world.size * (world.size + 1) // 2).any():
                raise AssertionError(f"{size} bytes: a sum is wrong")
        timers = [Timer(partial(comm.Allreduce, x, y)) for comm, y in zip(comms, ys, strict=True)]
        each = given.seconds / len(sizes) / len(comms) / given.rounds
        block = min(block_length(timer, each, world) for timer in timers)
        times = interleave(timers, given.rounds, block, world)
        row: dict[str, Any] = {"bytes": size, "calls": block, "values": {}}
        for i, (value, comm) in enumerate(zip(VALUES, comms, strict=True)):
            send, recv = (int(array.ctypes.data) for array in (x, ys[i]))
            call = _core.Call("allreduce", send, recv, x.size, "float32")
            found = _core.plan_for(comm, call)
            across = found["parameters"].get("across", "")
            middle, low, high = ratio(times[:, i], times[:, 1])
            row["values"][value] = {
                "plan": f"{found['plan']} {across}".strip(),
                "us": microseconds(times[:, i]),
                "rounds_us": (times[:, i] * 1e6).tolist(),
                "ratio": middle,
                "ratio_p10": low,
                "ratio_p90": high,
            }
        yield row


def be_a_rank(given: argparse.Namespace) -> int:
    from mpi4py import MPI

    from gradred.bench.machine import describe, mpi_name
    from gradred.bench.rank_zero import say, write_json

    world = MPI.COMM_WORLD
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["rows"] = rows = []
    say(world, f"# GRADRED_DETERMINISTIC, {world.size} ranks, {mpi_name()}; us per call, medians")
    for row in measure(given):
        rows.append(row)
        say(world, f"{row['bytes']} B")
        for value, found in row["values"].items():
            spread = f"{found['ratio']:.2f} ({found['ratio_p10']:.2f}-{found['ratio_p90']:.2f})"
            say(world, f"  {value:5}{found['us']:12.1f}  {spread}  {found['plan']}")
    if world.rank == 0:
        write_json(given.json, record)
    return 0


# ---- the process that starts the job ------------------------------------------------------------


def start(name: str, given: argparse.Namespace) -> int:
    """Measure one layout on hosts of its own; returns the exit status of the job."""
    import between_hosts
    from hosts import machines  # a module of the tests; the import above has set its path

    from gradred import launch

    family = launch.find_mpi().family.lower().replace(" ", "")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    path = (given.out / f"determinism-{family}-{name}-{today}.json").resolve()
    words = [str(Path(__file__).resolve()), "--json", str(path), "--rate", given.rate]
    for option in ("seconds", "max", "rounds"):
        words += [f"--{option}", str(getattr(given, option))]
    ranks = LAYOUTS[name]
    where = ",".join(f"h{number}:{count}" for number, count in enumerate(ranks, 1))
    with machines.Machines(len(ranks)) as made, tempfile.TemporaryDirectory() as cache:
        for number in range(1, len(ranks) + 1):
            if given.rate != "none":
                made.limit(f"h{number}", given.rate)
        return between_hosts.run_job(made, given, words, where, cache)


def main() -> int:
    given = arguments()
    if given.json is not None:
        return be_a_rank(given)
    given.out.mkdir(parents=True, exist_ok=True)
    return int(any(start(name, given) != 0 for name in given.layout or LAYOUTS))


if __name__ == "__main__":
    sys.exit(main())
