"""NCCL, if it runs, and its calls in CUDA graphs. Section `nccl` of h200.py."""

from __future__ import annotations

import ctypes
from timeit import Timer
from typing import Any

import numpy as np
from blocks import block_length, interleave, microseconds
from handover import must, new_stream
from libraries import Library
from mpi4py import MPI
from telling import so_far

import gradred

Record = dict[str, Any]
MOST_SHARED = 1 << 23  # if ranks share one GPU, a kernel waits until its peer's kernel has a turn
SIZES = [1 << 14, 1 << 20, 1 << 23, 1 << 26, 1 << 29]
RELAXED = 2  # mode of capture in which other threads may allocate


def measure(comm: gradred.Comm, library: Library, cuda: Any, most: int) -> Record:
    """Measure on a GPU for each rank if there are enough GPUs, else with all ranks on one."""
    count = ctypes.c_int()
    must(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    library.use(comm.rank % count.value)
    record: Record = {"devices": count.value, "ranks": comm.size}
    try:
        gradred.allreduce(library.put(np.ones(1000, np.float32)), comm=comm, plan="nccl")
    except gradred.Error as refusal:
        return record | {"refused": f"{type(refusal).__name__}: {refusal}"}
    record["path"] = comm.device_path
    most = min(most, MOST_SHARED) if count.value < comm.size else most
    record["rows"] = rows = []
    for size in SIZES:
        if size <= most:
            rows.append(_row(comm, library, size))
            so_far(comm.rank, rows)
    record["graph"] = _graph(comm, library, cuda)
    return record


def _row(comm: gradred.Comm, library: Library, nbytes: int) -> Record:
    count, total = nbytes // 4, comm.size * (comm.size + 1) // 2
    x = library.put(np.full(count, comm.rank + 1, np.float32))
    y = library.put(np.zeros(count, np.float32))
    calls = {
        "nccl": lambda: gradred.allreduce(x, out=y, comm=comm, plan="nccl"),
        "gradred's own": lambda: gradred.allreduce(x, out=y, comm=comm),
    }
    for name, call in calls.items():
        library.set(y, np.zeros(count, np.float32))
        call()
        if not (np.asarray(library.get(y)) == total).all():
            raise AssertionError(f"{name}, {nbytes} bytes: not the sum")
    timers = [Timer(call) for call in calls.values()]
    block = min(block_length(timer, 0.02, MPI.COMM_WORLD) for timer in timers)
    times = interleave(timers, 5, block, MPI.COMM_WORLD)
    return {"bytes": nbytes} | {
        f"{name} us": microseconds(times[:, i]) for i, name in enumerate(calls)
    }


def _graph(comm: gradred.Comm, library: Library, cuda: Any) -> Record:
    """Capture a call once, and launch it with other data."""
    count, total = 70_001, comm.size * (comm.size + 1) // 2
    stream, graph, launched = new_stream(cuda), ctypes.c_void_p(), ctypes.c_void_p()
    x = library.put(np.zeros(count, np.float32))
    y = library.put(np.zeros(count, np.float32))
    must(cuda.cuStreamBeginCapture_v2(stream, RELAXED), "cuStreamBeginCapture")
    gradred.allreduce(x, out=y, comm=comm, plan="nccl", stream=stream.value)
    must(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)), "cuStreamEndCapture")
    must(
        cuda.cuGraphInstantiateWithFlags(ctypes.byref(launched), graph, ctypes.c_uint64(0)),
        "cuGraphInstantiateWithFlags",
    )

    def launch() -> None:
        must(cuda.cuGraphLaunch(launched, stream), "cuGraphLaunch")
        must(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize")

    for factor in range(1, 4):
        library.set(x, np.full(count, factor * (comm.rank + 1), np.float32))
        comm.Barrier()
        launch()
        if not (np.asarray(library.get(y)) == factor * total).all():
            raise AssertionError(f"launch {factor}: not the sum")
    comm.Barrier()
    return {"launches": 3, "us": round(min(Timer(launch).repeat(5, 10)) / 10 * 1e6, 1)}
