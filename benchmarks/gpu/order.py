"""Calls in stream order, on a device that has other work: section `order` of h200.py.

The host gives everything to the stream without waiting: a load, the input, the call, a copy of the
result, and other values over the input. Results are checked. Two times are compared with blocking
calls: until the call returns while the stream still has the load, and until the result is there.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from timeit import Timer
from typing import Any

import numpy as np
from blocks import block_length, interleave, microseconds
from libraries import Library
from mpi4py import MPI
from telling import so_far

import gradred
from gradred.bench.timing import ratio

Record = dict[str, Any]
SIZES = [8, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26, 1 << 28, 1 << 29]
LOADS = 20


class Stream:
    """A stream of the driver, and copies in it."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        made = ctypes.c_void_p()
        self._must("cuStreamCreate", ctypes.byref(made), 1)
        assert made.value is not None
        self.handle: int = made.value

    def _must(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: code {code}")

    def copy(self, target: int, source: int, nbytes: int) -> None:
        at, of = ctypes.c_uint64(target), ctypes.c_uint64(source)
        size, stream = ctypes.c_size_t(nbytes), ctypes.c_void_p(self.handle)
        self._must("cuMemcpyAsync", at, of, size, stream)

    def finish(self) -> None:
        self._must("cuStreamSynchronize", ctypes.c_void_p(self.handle))

    def allocate_and_free(self) -> None:
        """Allocate and free memory, for which the driver may wait until the device is idle."""
        address = ctypes.c_uint64()
        self._must("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(1 << 20))
        self._must("cuMemFree_v2", address)


def measure(comm: gradred.Comm, library: Library, cuda: Any, most: int) -> Record:
    """Check and time each size; returns rank 0's record."""
    total = comm.size * (comm.size + 1) // 2
    scratch = [library.put(np.zeros(most // 4, np.float32)) for _ in range(2)]
    stream = Stream(cuda)  # in the context that the library has made
    rows = []
    for nbytes in [size for size in SIZES if size <= most]:
        count = nbytes // 4
        given, rubbish = np.full(count, comm.rank + 1, np.float32), np.full(count, -9, np.float32)
        source, bad = library.put(given), library.put(rubbish)
        x, y, seen = (library.put(rubbish) for _ in range(3))
        arrays = {"source": source, "bad": bad, "x": x, "y": y, "seen": seen}
        at = {name: library.address(array) for name, array in arrays.items()}

        def whole(free: bool, x: Any = x, y: Any = y, at: Any = at, nbytes: int = nbytes) -> float:
            for i in range(LOADS):
                two = [library.address(one) for one in scratch]
                stream.copy(two[i % 2], two[1 - i % 2], most)
            stream.copy(at["x"], at["source"], nbytes)
            begin = time.perf_counter()
            gradred.allreduce(x, out=y, comm=comm, stream=stream.handle)
            took = time.perf_counter() - begin
            stream.copy(at["seen"], at["y"], nbytes)
            stream.copy(at["x"], at["bad"], nbytes)
            if free:
                stream.allocate_and_free()
            stream.finish()
            return took

        returns = []
        for turn in range(6):
            library.set(seen, rubbish)
            returns.append(whole(free=turn % 2 == 1))
            if not (np.asarray(library.get(seen)) == total).all():
                raise AssertionError(f"{nbytes} bytes, turn {turn}: not the sum")

        def in_order(x: Any = x, y: Any = y) -> None:
            gradred.allreduce(x, out=y, comm=comm, stream=stream.handle)
            stream.finish()

        def blocking(x: Any = x, y: Any = y) -> None:
            gradred.allreduce(x, out=y, comm=comm)

        calls: dict[str, Callable[[], None]] = {"blocking": blocking, "in order": in_order}
        timers = [Timer(call) for call in calls.values()]
        block = min(block_length(timer, 0.02, MPI.COMM_WORLD) for timer in timers)
        times = interleave(timers, 9, block, MPI.COMM_WORLD)
        middle, low, high = ratio(times[:, 0], times[:, 1])
        row: Record = {"bytes": nbytes, "returns_after_us": round(min(returns[2:]) * 1e6, 1)}
        row |= {name: microseconds(times[:, i]) for i, name in enumerate(calls)}
        row |= {"blocking_over_in_order": middle, "p10": low, "p90": high}
        rows.append(row)
        so_far(comm.rank, rows)
    return {"library": library.name, "path": comm.device_path, "rows": rows}
