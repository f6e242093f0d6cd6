"""What the benchmarks share: interleaved timing, exact inputs, a description of the machine.

All of it runs on plain mpi4py communicators, so that nothing measured is also the measure.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from timeit import Timer
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

import gradred
from gradred import _cpu

Array = NDArray[Any]
Seconds = NDArray[np.float64]

#: Length of the pattern that `Inputs` repeats: a prime, so that no chunk boundary hides a mistake.
PERIOD = 4099

_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
MPI_OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}


class Inputs:
    """Input vectors, different on each rank, whose result is exact in every order of reduction.

    The values are small integers: partial sums stay below the first integer that the type cannot
    hold. For a product at most one rank holds a 2 at any position and the others a 1.

    Args:
        dtype: element type of the vectors.
        op: one of `MPI_OPS`.
        size: number of ranks.
    """

    def __init__(self, dtype: DTypeLike, op: str, size: int) -> None:
        self._dtype = np.dtype(dtype)
        rng = np.random.default_rng(size)
        if op == "prod":
            holder = rng.integers(0, size + 1, PERIOD)
            patterns = [1 + (holder == rank) for rank in range(size)]
        else:
            high = min(100, _largest_integer(self._dtype) // size)
            low = 0 if self._dtype.kind in "ub" else -high
            patterns = list(rng.integers(low, high, (size, PERIOD), endpoint=True))
        self._patterns = [pattern.astype(self._dtype) for pattern in patterns]
        result = self._patterns[0]
        for pattern in self._patterns[1:]:
            result = _COMBINE[op](result, pattern)
        self._result = result

    def fill(self, vector: Array, rank: int) -> None:
        """Write the input of `rank`, as many elements of it as `vector` has, into `vector`."""
        for start in range(0, len(vector), PERIOD):
            piece = vector[start : start + PERIOD]
            piece[:] = self._patterns[rank][: len(piece)]

    def holds_result(self, vector: Array) -> bool:
        """Whether `vector` is the exact reduction of all ranks' inputs."""
        whole = len(vector) // PERIOD * PERIOD
        table, rest = vector[:whole].reshape(-1, PERIOD), vector[whole:]
        return bool((table == self._result).all() and (rest == self._result[: len(rest)]).all())


def _largest_integer(dtype: np.dtype[Any]) -> int:
    """The largest integer up to which the type holds every integer."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max)
    return int(2 ** (np.finfo(dtype).nmant + 1))


def parse_once(parser: Callable[[], argparse.Namespace], comm: MPI.Intracomm) -> argparse.Namespace:
    """Parse the command line on rank 0, so that usage and errors are printed once."""
    parsed: argparse.Namespace | int | str | None = None
    if comm.rank == 0:
        try:
            parsed = parser()
        except SystemExit as stop:
            parsed = stop.code
    parsed = comm.bcast(parsed)
    if isinstance(parsed, argparse.Namespace):
        return parsed
    raise SystemExit(parsed)


def agree(value: float, comm: MPI.Intracomm) -> float:
    """The largest of the ranks' values: the same on every rank, so that all decide alike."""
    return float(comm.allreduce(value, MPI.MAX))


def block_length(timer: Timer, seconds: float, comm: MPI.Intracomm, *, most: int = 100_000) -> int:
    """Calls that fill about `seconds`, at least one, the same number on all ranks of `comm`."""
    calls, taken = 1, 0.0
    while calls < most:
        comm.Barrier()
        taken = agree(timer.timeit(calls), comm)
        if taken > seconds / 10:
            break
        calls *= 4
    return max(1, min(most, int(calls * seconds / max(taken, 1e-9))))


def interleave(timers: Sequence[Timer], rounds: int, block: int, comm: MPI.Intracomm) -> Seconds:
    """Time statements against each other, block by block, in alternating order.

    Each round runs one block of every statement; every second round runs them in reverse. A
    barrier of `comm` starts each block.

    Returns:
        Seconds per call, (rounds, statements): the mean of a block on the slowest rank.
    """
    order = list(range(len(timers)))
    means = np.empty((rounds, len(timers)))
    for row in means:
        for index in order:
            comm.Barrier()
            row[index] = timers[index].timeit(block) / block
        order.reverse()
    comm.Allreduce(MPI.IN_PLACE, means, MPI.MAX)
    return means


class Ratio(NamedTuple):
    """Median, 10th and 90th percentile over the rounds of one statement's time over another's."""

    median: float
    p10: float
    p90: float


def ratio(over: Seconds, under: Seconds) -> Ratio:
    """Compare round by round, so that what slows a whole round cancels out."""
    p10, median, p90 = np.percentile(over / under, [10, 50, 90])
    return Ratio(float(median), float(p10), float(p90))


def microseconds(seconds: Seconds) -> float:
    """The median over the rounds, in microseconds."""
    return float(np.median(seconds) * 1e6)


def describe(comm: MPI.Intracomm, arguments: dict[str, Any]) -> dict[str, Any]:
    """Machine, versions, date and arguments: what a reader needs to repeat the measurement.

    Collective on `comm`.
    """
    hosts = len(set(comm.allgather(platform.node())))
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "arguments": {key: _plain(value) for key, value in arguments.items()},
        "ranks": comm.size,
        "hosts": hosts,
        "machine": {
            "cpu": _cpu.model(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "cores_of_rank_0": _cpu.cores(),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "kernel": platform.release(),
        },
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "mpi4py": importlib.metadata.version("mpi4py"),
            "mpi": " ".join(MPI.Get_library_version().strip("\0").split()),
            "gradred": gradred.__version__,
        },
    }


def mpi_name() -> str:
    """Name and version of the MPI in this process, such as `MPICH 5.0.2`."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write `record`, creating the folder of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def say(comm: MPI.Intracomm, text: str, *, error: bool = False) -> None:
    """Print a line on rank 0 alone."""
    if comm.rank == 0:
        print(text, file=sys.stderr if error else sys.stdout, flush=True)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
