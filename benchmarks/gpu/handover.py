"""Time a signal between host and device, and compare staging with its parts.

Sections `handover` and `staging` of h200.py.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from libraries import Library
from mpi4py import MPI
from telling import so_far

import gradred
from gradred import _core

Record = dict[str, Any]
NON_BLOCKING = 1
TURNS = 200


def must(code: int, what: str) -> None:
    if code != 0:
        raise RuntimeError(f"{what}: code {code}")


def microseconds(action: Callable[[], object], turns: int) -> float:
    """Return the median time of so many calls."""
    times = []
    for _ in range(turns):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return round(statistics.median(times) * 1e6, 2)


class Pinned:
    """Pinned host memory, which a device reads and writes by DMA."""

    def __init__(self, cuda: Any, nbytes: int) -> None:
        self.cuda, self.at = cuda, ctypes.c_void_p()
        must(
            cuda.cuMemHostAlloc(ctypes.byref(self.at), ctypes.c_size_t(nbytes), 0), "cuMemHostAlloc"
        )
        assert self.at.value is not None
        self.address: int = self.at.value
        self.bytes = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(self.address), np.uint8)

    def free(self) -> None:
        must(self.cuda.cuMemFreeHost(self.at), "cuMemFreeHost")


def new_stream(cuda: Any) -> ctypes.c_void_p:
    stream = ctypes.c_void_p()
    must(cuda.cuStreamCreate(ctypes.byref(stream), NON_BLOCKING), "cuStreamCreate")
    return stream


def copier(cuda: Any, stream: ctypes.c_void_p, target: int, source: int, nbytes: int) -> Any:
    """Return a function that copies and waits for the copy."""
    where = ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes)

    def action() -> None:
        must(cuda.cuMemcpyAsync(*where, stream), "cuMemcpyAsync")
        must(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize")

    return action


def measure(comm: gradred.Comm, library: Library, cuda: Any) -> Record:
    """Measure on rank 0 the microseconds from the host to the device and back."""
    ranks = _core.one_way_latency(comm)
    record: Record = {"a flag between two ranks' cores": round(ranks * 1e6, 3)}
    if comm.rank == 0:
        here = library.put(np.zeros(1024, np.uint8))
        pinned, stream = Pinned(cuda, 4096), new_stream(cuda)
        try:
            record |= _of_one(cuda, stream, pinned, library.address(here))
        finally:
            pinned.free()
    MPI.COMM_WORLD.barrier()
    return record | {"all ranks at once": _all_at_once(comm, library, cuda)}


class _Side(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("host", ctypes.c_void_p),
        ("address", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
    )


class _Rows(ctypes.Structure):
    """The driver's CUDA_MEMCPY2D."""

    _fields_ = (
        ("of", _Side),
        ("to", _Side),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


def _all_at_once(comm: gradred.Comm, library: Library, cuda: Any) -> Record:
    """Time copies by all ranks, which may share a device; medians of the slowest rank."""
    unified, most = 4, 1 << 20
    array = library.put(np.zeros(2 * most, np.uint8))
    x = library.address(array)
    pinned, stream = Pinned(cuda, most), new_stream(cuda)
    record: Record = {}
    for nbytes in (8, 1 << 14, 1 << 17, most):

        def in_rows(nbytes: int = nbytes) -> None:
            half = nbytes // 2
            of = _Side(type=unified, address=pinned.address, pitch=half)
            rows = _Rows(of, _Side(type=unified, address=x, pitch=half), half, 2)
            must(cuda.cuMemcpy2DAsync_v2(ctypes.byref(rows), stream), "cuMemcpy2DAsync")
            must(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize")

        ways = {
            "from the device": copier(cuda, stream, pinned.address, x, nbytes),
            "to the device": copier(cuda, stream, x, pinned.address, nbytes),
            "to the device, two rows": in_rows,
            "within the device": copier(cuda, stream, x, x + most, nbytes),
        }
        row = {}
        for name, action in ways.items():
            times = []
            for _ in range(TURNS // 4):
                comm.Barrier()
                begin = time.perf_counter()
                action()
                comm.Barrier()
                times.append(time.perf_counter() - begin)
            slowest = np.array([statistics.median(times)])
            comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
            row[f"{name} us"] = round(float(slowest[0]) * 1e6, 2)
        record[f"{nbytes} bytes"] = row
    pinned.free()
    return record


def _of_one(cuda: Any, stream: ctypes.c_void_p, pinned: Pinned, there: int) -> Record:
    words = pinned.bytes.view(np.uint32)
    copy = ctypes.c_uint64(there), ctypes.c_uint64(there + 512), ctypes.c_size_t(8)

    def asked() -> None:
        must(cuda.cuMemcpyAsync(*copy, stream), "cuMemcpyAsync")
        while cuda.cuStreamQuery(stream) != 0:
            pass

    turn = [0]
    first, second = ctypes.c_uint64(pinned.address), ctypes.c_uint64(pinned.address + 64)

    def by_words() -> None:
        turn[0] += 1
        value = ctypes.c_uint32(turn[0])
        must(cuda.cuStreamWaitValue32_v2(stream, first, value, 0), "cuStreamWaitValue32")
        must(cuda.cuStreamWriteValue32_v2(stream, second, value, 0), "cuStreamWriteValue32")
        words[0] = turn[0]
        while words[16] != turn[0]:
            pass

    record: Record = {
        "copy of 8 bytes, then cuStreamSynchronize": microseconds(
            copier(cuda, stream, there, there + 512, 8), TURNS
        ),
        "copy of 8 bytes, cuStreamQuery until it is done": microseconds(asked, TURNS),
    }
    try:
        record["host word, cuStreamWaitValue32, cuStreamWriteValue32, host"] = microseconds(
            by_words, TURNS
        )
    except (RuntimeError, AttributeError) as problem:
        record["no stream memory operations"] = str(problem)
    return record


def staging(comm: gradred.Comm, library: Library, cuda: Any, most: int) -> Record:
    """Compare calls through host memory with the longest of copy out, reduction, and copy in."""
    gradred.config.set("ipc_bytes", "none")
    staged = gradred.Comm(MPI.COMM_WORLD.Dup())
    staged.Allreduce(MPI.IN_PLACE, np.zeros(1))
    gradred.config.reset("ipc_bytes")
    rows = []
    for nbytes in [size for size in (1 << 21, 1 << 24, 1 << 26, 1 << 28, 1 << 29) if size <= most]:
        count = nbytes // 4
        x = library.put(np.full(count, comm.rank + 1, np.float32))
        y = library.put(np.zeros(count, np.float32))
        pinned, stream = Pinned(cuda, nbytes), new_stream(cuda)
        on_host = pinned.bytes.view(np.float32)
        parts: dict[str, Callable[[], object]] = {
            "copy out": copier(cuda, stream, pinned.address, library.address(x), nbytes),
            "reduce": lambda on_host=on_host: comm.Allreduce(MPI.IN_PLACE, on_host),
            "copy in": copier(cuda, stream, library.address(y), pinned.address, nbytes),
            "staged": lambda x=x, y=y: staged.Allreduce(x, y),
        }
        turns = 15 if nbytes <= 1 << 26 else 5
        took = {}
        for name, action in parts.items():
            action()
            comm.Barrier()
            mine = np.array([microseconds(action, turns)])
            comm.Allreduce(MPI.IN_PLACE, mine, MPI.MAX)
            took[name] = float(mine[0])
        total = comm.size * (comm.size + 1) // 2
        if not (np.asarray(library.get(y)) == total).all():
            raise AssertionError(f"{nbytes} bytes: not the sum")
        longest = max(took[name] for name in ("copy out", "reduce", "copy in"))
        of_bound = round(longest / took["staged"], 3)
        rows.append({"bytes": nbytes, "us": took, "longest_part_over_staged": of_bound})
        so_far(comm.rank, rows)
        pinned.free()
    return {"library": library.name, "rows": rows}
