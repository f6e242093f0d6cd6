"""Time operations that nobody waits for: from the last one's start until all have ended.

    gradred run -np 2 python benchmarks/unattended.py --json out.json            (needs PyTorch)
    gradred run -np 2 python benchmarks/unattended.py --memory host --beside half

A rank that waits for an operation advances it. DistributedDataParallel waits for futures, so
the progress thread alone advances its operations. Here each rank submits 12 named allreduces, the
ranks a little apart, and then only asks whether they have ended, once a millisecond.

--memory simulated takes arrays on the simulated GPU of the tests (a built checkout), host takes
tensors in host memory. --beside half starts one process for each core that computes for half of the
time. The JSON record (`schema` = "gradred-unattended/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag     {what, us}: the time of one signal between ranks 0 and 1
    rows     [{memory, beside, arrays, bytes, late_ms, gap_ms, median_ms, worst_ms}]; bytes: of each
             array; late_ms: one rank comes so much later, in turn; gap_ms: between two submissions
    worst_ms the largest of all rows
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SCHEMA = "gradred-unattended/1"
TESTS = Path(__file__).resolve().parent.parent / "tests"
SIMULATED = TESTS / "libsimulated_cuda.so"
ARRAYS = 12
APART_MS = ((0.0, 0.0), (2.0, 0.0), (0.0, 3.0), (2.0, 3.0))  # late, gap
MEMORIES, BESIDES = ("simulated", "host"), ("nothing", "half")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="operations that nobody waits for")
    parser.add_argument("--memory", nargs="+", choices=MEMORIES, default=MEMORIES)
    parser.add_argument("--beside", nargs="+", choices=BESIDES, default=BESIDES)
    parser.add_argument("--kib", nargs="+", type=int, default=[64, 1024], help="of each array")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def use_the_simulated_gpu() -> None:
    """Let gradred load the simulated driver. It reads these variables when it is imported."""
    for name in ("LIBCUDA", "LIBNVRTC", "LIBNCCL"):
        os.environ[f"GRADRED_{name}"] = str(SIMULATED)
    os.environ |= {"SIMULATED_CUDA_MPS": "1", "SIMULATED_CUDA_DEVICES": "1"}
    sys.path.insert(0, str(TESTS))


if SIMULATED.exists():
    use_the_simulated_gpu()

import torch  # noqa: E402
from arguments import parse_once  # noqa: E402
from mpi4py import MPI  # noqa: E402

import gradred.torch as hvd  # noqa: E402
from gradred.bench.machine import describe, mpi_name, one_way_latency  # noqa: E402
from gradred.bench.rank_zero import say, write_json  # noqa: E402

HALF_OF_THE_TIME = """
import time
while True:
    end = time.perf_counter() + 5e-3
    while time.perf_counter() < end:
        pass
    time.sleep(5e-3)
"""


@contextlib.contextmanager
def programs_beside(what: str, world: MPI.Comm) -> Iterator[None]:
    """Let rank 0 start what --beside asks for, and end it."""
    cores = len(os.sched_getaffinity(0)) if what == "half" and world.rank == 0 else 0
    command = [sys.executable, "-c", HALF_OF_THE_TIME]
    started = [subprocess.Popen(command) for _ in range(cores)]
    time.sleep(1 if what == "half" else 0)  # until they compute
    world.Barrier()
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
        world.Barrier()


def milliseconds(arrays: list[Any], late_ms: float, gap_ms: float) -> float:
    """Submit an operation for each array, and return how long after the last one all ended."""
    hvd.barrier()
    handles = []
    for number, array in enumerate(arrays):
        is_late = (hvd.rank() == 1) == (number % 2 == 0)
        time.sleep(1e-3 * (gap_ms + (late_ms if is_late else 0)))
        handles.append(hvd.allreduce_async_(array, op=hvd.Sum, name=f"array {number}"))
    begin = time.perf_counter()
    while not all(hvd.poll(handle) for handle in handles):
        time.sleep(1e-3)
    took = 1e3 * (time.perf_counter() - begin)
    for handle in handles:
        hvd.synchronize(handle)
    return took


def row(arrays: list[Any], late_ms: float, gap_ms: float, rounds: int) -> dict[str, float]:
    """Return the times of the rank that took longest."""
    took = [milliseconds(arrays, late_ms, gap_ms) for _ in range(rounds)]
    own = torch.tensor([statistics.median(took), max(took)])
    median, worst = hvd.allreduce(own, op=hvd.Max, name="times").tolist()
    return {"late_ms": late_ms, "gap_ms": gap_ms, "median_ms": median, "worst_ms": worst}


def rows(given: argparse.Namespace, world: MPI.Comm) -> Iterator[dict[str, Any]]:
    for memory, beside in itertools.product(given.memory, given.beside):
        with in_memory(memory) as place, programs_beside(beside, world):
            for kib in given.kib:
                arrays = [place(torch.ones(kib * 256)) for _ in range(ARRAYS)]
                for _ in range(3):
                    milliseconds(arrays, 0, 0)
                about = {"memory": memory, "beside": beside, "arrays": ARRAYS, "bytes": kib << 10}
                for late_ms, gap_ms in APART_MS:
                    yield about | row(arrays, late_ms, gap_ms, given.rounds)


@contextlib.contextmanager
def in_memory(memory: str) -> Iterator[Callable[[torch.Tensor], Any]]:
    """Yield what puts a tensor into this memory."""
    if memory == "host":
        yield lambda tensor: tensor
        return
    if not SIMULATED.exists():
        raise SystemExit(f"--memory simulated needs {SIMULATED.name}: build the checkout first")
    from gpu.simulated import the_driver
    from gpu.tensors import in_stream, on_gpu

    driver = the_driver()
    with in_stream(driver, driver.stream()):
        yield on_gpu


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    torch.set_num_threads(1)
    hvd.init()
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["versions"]["torch"] = torch.__version__
    record["flag"] = one_way_latency(world)
    say(world, f"# {world.size} ranks, {mpi_name()}; flag {record['flag']}")
    record["rows"] = []
    for one in rows(given, world):
        record["rows"].append(one)
        text = f"{one['memory']}, beside {one['beside']}: 12 x {one['bytes'] >> 10} KiB, late "
        text += f"{one['late_ms']:.0f} ms, gap {one['gap_ms']:.0f} ms: median "
        say(world, f"{text}{one['median_ms']:.1f} ms, worst {one['worst_ms']:.1f} ms")
    record["worst_ms"] = max(one["worst_ms"] for one in record["rows"])
    say(world, f"worst {record['worst_ms']:.1f} ms")
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
