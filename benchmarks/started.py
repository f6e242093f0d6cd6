"""Compare blocking, non-blocking and persistent calls of one allreduce, and the MPI's.

    gradred run -np 2 python benchmarks/started.py --json out.json

It has five parts, each in turn call by call or block by block, on the same buffers, after the
results were checked:

- ways: `Allreduce`, `Iallreduce` and `Wait`, `p()`, and the MPI's own `Iallreduce` and `Wait`;
- waitall: two requests in `MPI.Request.Waitall` and in `gradred.Request.Waitall`, without other
  processes and while --busy other processes compute all the time;
- late: rank 0 arrives 300 microseconds late. The part measures how long the others wait beyond
  that, in `Allreduce` on a communicator that shares memory, on one that does not, and of the MPI;
- overlap: an operation of --overlap-bytes is started, then matrices are multiplied for about
  --overlap-ms on the same cores. The part measures the wait after that;
- several: ten reductions of 4 MiB, four of 1 MiB, 161 of 1 KiB, by blocking calls and by starting
  all before the first wait.

The JSON record (`schema` = "gradred-started/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag      {what, us}: the time of one signal between ranks 0 and 1
    ways      [{bytes, calls, rounds_us{way: [...]}, us{way}, to_blocking{way: ratio},
                to_mpi{way: ratio}}]; to_mpi is the MPI's time divided by the variant's
    waitall   [{bytes, busy, us{how}, p90_us{how}}]; busy: the number of other processes
    late      [{bytes, us{how}}]: medians over calls, of the slowest rank that waits
    overlap   {bytes, compute_ms, left_ms{how}, rounds_ms{how: [...]}}
    several   [{arrays, bytes, us{how}, rounds_us{how: [...]}}]; bytes of each array
"""

from __future__ import annotations

import argparse
import functools
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from timeit import Timer
from typing import Any

import numpy as np
from arguments import options, parse_once, read
from blocks import agree, block_length, interleave, microseconds
from mpi4py import MPI

import gradred
from gradred import config
from gradred.bench.machine import describe, mpi_name, one_way_latency
from gradred.bench.rank_zero import say, write_json
from gradred.bench.timing import ratio

SCHEMA = "gradred-started/1"
WAYS = {
    "blocking": "comm.Allreduce(x, y)",
    "started": "comm.Iallreduce(x, y).Wait()",
    "persistent": "p()",
    "mpi": "plain.Iallreduce(x, y).Wait()",
}
WAITALLS = {
    "MPI.Request.Waitall": "waitall([a.Iallreduce(x, y), b.Iallreduce(x, z)])",
    "gradred.Request.Waitall": "own_waitall([a.Iallreduce(x, y), b.Iallreduce(x, z)])",
    "all the MPI's": "waitall([c.Iallreduce(x, y), d.Iallreduce(x, z)])",
}
LATE_S = 300e-6
SEVERAL = ((10, 4 << 20), (4, 1 << 20), (161, 1 << 10))
PARTS = ("ways", "waitall", "late", "overlap", "several")
Names = dict[str, Any]


def arguments() -> argparse.Namespace:
    sizes = [8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
    about = "blocking, non-blocking and persistent calls"
    parser = options(about, rounds=15, seconds=90.0, sizes=sizes)
    parser.add_argument("--overlap-bytes", type=int, default=64_000_000)
    parser.add_argument("--overlap-ms", type=float, default=400.0)
    parser.add_argument("--busy", type=int, default=2, help="other processes, in a part of waitall")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    return read(parser)


def checked(names: Names, statements: dict[str, str], world: MPI.Intracomm) -> None:
    """Exit if a variant's result is wrong."""
    names["x"][:] = world.rank + np.arange(len(names["x"])) % 7
    expected = sum(range(world.size)) + world.size * (np.arange(len(names["x"])) % 7)
    for way, statement in statements.items():
        names["y"].fill(-1)
        Timer(statement, globals=names).timeit(1)
        if not world.allreduce(bool((names["y"] == expected).all()), MPI.LAND):
            raise SystemExit(f"{way}: wrong result at {names['x'].nbytes} bytes")


def buffers(nbytes: int) -> Names:
    x = np.ones(nbytes // 4, np.float32)
    return {"x": x, "y": np.empty_like(x), "z": np.empty_like(x)}


def ways(
    comm: gradred.Comm, given: argparse.Namespace, world: MPI.Intracomm
) -> Iterator[dict[str, Any]]:
    """Yield the rows; collective on `world`."""
    each = given.seconds / len(given.sizes) / given.rounds / len(WAYS)
    for nbytes in given.sizes:
        names = buffers(nbytes) | {"comm": comm, "plain": world}
        names["p"] = comm.Allreduce_init(names["x"], names["y"])
        checked(names, WAYS, world)
        timers = [Timer(statement, globals=names) for statement in WAYS.values()]
        block = min(block_length(timer, each, world) for timer in timers)
        times = interleave(timers, given.rounds, block, world)
        names["p"].Free()
        by_way = dict(zip(WAYS, times.T, strict=True))
        yield {
            "bytes": nbytes,
            "calls": block,
            "us": {way: microseconds(one) for way, one in by_way.items()},
            "to_blocking": {way: ratio(one, by_way["blocking"]) for way, one in by_way.items()},
            "to_mpi": {way: ratio(by_way["mpi"], one) for way, one in by_way.items()},
            "rounds_us": {way: (one * 1e6).tolist() for way, one in by_way.items()},
        }


@contextmanager
def others_that_compute(count: int) -> Iterator[None]:
    """Run so many processes without MPI that compute all the time."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def waitall(
    comm: gradred.Comm, given: argparse.Namespace, world: MPI.Intracomm
) -> Iterator[dict[str, Any]]:
    others = [gradred.Comm(world.Dup()), world.Dup(), world.Dup()]
    others[0].Allreduce(MPI.IN_PLACE, np.zeros(1))  # sets up the communicator
    for busy, nbytes in itertools.product((0, given.busy), (8, 64 << 10, 1 << 20)):
        names = buffers(nbytes) | dict(zip("abcd", [comm, *others], strict=True))
        names |= {"waitall": MPI.Request.Waitall, "own_waitall": gradred.Request.Waitall}
        checked(names, WAITALLS, world)
        timers = [Timer(statement, globals=names) for statement in WAITALLS.values()]
        with others_that_compute(busy if world.rank == 0 else 0):
            world.Barrier()
            block = min(block_length(timer, 0.02, world) for timer in timers)
            times = interleave(timers, given.rounds, block, world)
        by_how = dict(zip(WAITALLS, times.T, strict=True))
        yield {
            "bytes": nbytes,
            "busy": busy,
            "us": {how: microseconds(one) for how, one in by_how.items()},
            "p90_us": {how: float(np.percentile(one, 90)) * 1e6 for how, one in by_how.items()},
        }


def wait_beyond(call: Callable[[], object], world: MPI.Intracomm) -> float:
    """Return how long the slowest waiting rank took beyond the time by which rank 0 is late."""
    world.Barrier()
    begin = time.perf_counter()
    while world.rank == 0 and time.perf_counter() - begin < LATE_S:
        pass
    call()
    took = time.perf_counter() - begin - LATE_S
    return agree(took if world.rank > 0 else -1.0, world)


def apart(world: MPI.Intracomm) -> gradred.Comm:
    """Make a communicator whose ranks exchange messages by a schedule of gradred's."""
    config.set("shm", False)
    config.set("plan", "recursive_doubling")
    comm = gradred.Comm(world.Dup())
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))  # sets up the communicator
    config.reset("shm")
    config.reset("plan")
    return comm


def late(
    comm: gradred.Comm, given: argparse.Namespace, world: MPI.Intracomm
) -> Iterator[dict[str, Any]]:
    others = apart(world)
    for nbytes in (8, 4096):
        names = buffers(nbytes)
        x, y = names["x"], names["y"]
        calls: dict[str, Callable[[], object]] = {
            "shared memory": lambda x=x, y=y: comm.Allreduce(x, y),
            "messages": lambda x=x, y=y: others.Allreduce(x, y),
            "mpi": lambda x=x, y=y: world.Allreduce(x, y),
        }
        taken: dict[str, list[float]] = {how: [] for how in calls}
        for _ in range(100):
            for how, call in calls.items():
                taken[how].append(wait_beyond(call, world))
        yield {"bytes": nbytes, "us": {how: 1e6 * float(np.median(t)) for how, t in taken.items()}}


def overlap(comm: gradred.Comm, given: argparse.Namespace, world: MPI.Intracomm) -> dict[str, Any]:
    names = buffers(given.overlap_bytes)
    x, y = names["x"], names["y"]
    matrix = np.ones((256, 256), np.float32)
    begin = time.perf_counter()
    for _ in range(50):
        matrix @ matrix
    products = int(given.overlap_ms / 1e3 / ((time.perf_counter() - begin) / 50))
    products = int(agree(products, world))
    begins = {"gradred": comm.Iallreduce, "mpi": world.Iallreduce}
    taken: dict[str, list[float]] = {how: [] for how in begins}
    computed = []
    for _ in range(max(5, given.rounds // 2)):
        for how, start in begins.items():
            world.Barrier()
            request = start(x, y)
            begin = time.perf_counter()
            for _ in range(products):
                matrix @ matrix
            middle = time.perf_counter()
            request.Wait()
            taken[how].append(agree(time.perf_counter() - middle, world))
            computed.append(middle - begin)
    return {
        "bytes": given.overlap_bytes,
        "compute_ms": 1e3 * float(np.median(computed)),
        "left_ms": {how: 1e3 * float(np.median(t)) for how, t in taken.items()},
        "rounds_ms": {how: [1e3 * one for one in t] for how, t in taken.items()},
    }


def blocking(comm: MPI.Comm, arrays: list[Any]) -> None:
    for array in arrays:
        comm.Allreduce(MPI.IN_PLACE, array)


def at_once(comm: MPI.Comm, arrays: list[Any]) -> None:
    for request in [comm.Iallreduce(MPI.IN_PLACE, array) for array in arrays]:
        request.Wait()


def several(
    comm: gradred.Comm, given: argparse.Namespace, world: MPI.Intracomm
) -> Iterator[dict[str, Any]]:
    for count, nbytes in SEVERAL:
        arrays = [np.ones(nbytes // 4, np.float32) for _ in range(count)]
        calls = {
            f"{who}, {how}": functools.partial(call, on, arrays)
            for who, on in (("gradred", comm), ("mpi", world))
            for how, call in (("blocking", blocking), ("at once", at_once))
        }
        rounds: dict[str, list[float]] = {how: [] for how in calls}
        for _ in range(given.rounds):
            for how, call in calls.items():
                for array in arrays:
                    array.fill(1)
                world.Barrier()
                begin = time.perf_counter()
                call()
                rounds[how].append(1e6 * agree(time.perf_counter() - begin, world))
                right = all(bool((array == world.size).all()) for array in arrays)
                if not world.allreduce(right, MPI.LAND):
                    raise SystemExit(f"{how}: wrong result of {count} arrays of {nbytes} bytes")
        us = {how: float(np.median(taken)) for how, taken in rounds.items()}
        yield {"arrays": count, "bytes": nbytes, "us": us, "rounds_us": rounds}


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    comm = gradred.Comm(world)
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))  # sets up the communicator
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["flag"] = one_way_latency(world)
    say(world, f"# {world.size} ranks, {mpi_name()}; us per call, medians; flag {record['flag']}")
    record["ways"] = []
    for row in ways(comm, given, world) if "ways" in given.parts else ():
        record["ways"].append(row)
        found = "  ".join(
            f"{way} {us:.2f} (x{row['to_blocking'][way].median:.2f})"
            for way, us in row["us"].items()
        )
        say(world, f"{row['bytes']:10}  {found}")
    for name, part in ("waitall", waitall), ("late", late), ("several", several):
        record[name] = []
        for row in part(comm, given, world) if name in given.parts else ():
            record[name].append(row)
            found = "  ".join(f"{how} {us:.2f}" for how, us in row["us"].items())
            busy = f", {row['busy']} others compute" if row.get("busy") else ""
            each = f"{row['arrays']} of " if "arrays" in row else ""
            say(world, f"{name}: {each}{row['bytes']:10}  {found}{busy}")
    if "overlap" in given.parts:
        record["overlap"] = found = overlap(comm, given, world)
        left = "  ".join(f"{how} {ms:.2f} ms" for how, ms in found["left_ms"].items())
        say(world, f"overlap: {found['bytes']} bytes, {found['compute_ms']:.0f} ms; left: {left}")
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
