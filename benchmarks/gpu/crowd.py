"""Many ranks on one GPU for some time, and a rank that is killed: sections of h200.py."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from typing import Any

import numpy as np
from libraries import Library
from mpi4py import MPI

import gradred

Record = dict[str, Any]
MOST = 1 << 20  # elements


def free_bytes(cuda: Any) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    code = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return int(free.value) if code == 0 else -1


def run(comm: gradred.Comm, library: Library, cuda: Any, seconds: float) -> Record:
    """Make calls of all kinds and lengths, in the same order on all ranks; check each result."""
    random = np.random.default_rng(7)  # the same on all ranks
    total = comm.size * (comm.size + 1) // 2
    stream, calls, elements = 1, 0, 0
    before, end = 0, time.monotonic() + seconds
    going = np.ones(1)
    while going[0] > 0:
        count, kind = int(2 ** random.uniform(0, np.log2(MOST))), int(random.integers(5))
        given = np.full(count, comm.rank + 1, np.float32)
        x = library.put(given)
        if kind == 0:
            y = gradred.allreduce(x, comm=comm)
        elif kind == 1:
            y = gradred.iallreduce(x, comm=comm).wait()
        elif kind == 2:
            y = gradred.iallreduce(x, comm=comm, stream=stream).wait()
        elif kind == 3:
            y = gradred.allreduce_many([x, x], comm=comm)[1]
        else:
            y = gradred.allreduce(x if comm.rank % 2 else given, comm=comm)
        if not (np.asarray(library.get(y)) == total).all():
            raise AssertionError(f"call {calls}, kind {kind}, {count} elements: not the sum")
        calls += 1
        elements += count
        going[0] = float(time.monotonic() < end)
        comm.Allreduce(MPI.IN_PLACE, going, MPI.MIN)
        if calls == 100:
            before = free_bytes(cuda)
    record = {"ranks": comm.size, "calls": calls, "elements": elements, "path": comm.device_path}
    return record | {
        "free_bytes_after_100_calls": before,
        "free_bytes_at_the_end": free_bytes(cuda),
    }


def death(comm: gradred.Comm, library: Library, cuda: Any) -> Record:
    """Kill rank 1 while others read its memory; return rank 0's error and what still works."""
    x = gradred.empty(MOST, device="cuda")
    comm.Allreduce(MPI.IN_PLACE, x)
    path = comm.device_path
    if comm.rank == 1:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    begin, calls = time.monotonic(), 0
    while True:
        try:
            comm.Allreduce(MPI.IN_PLACE, x)
            calls += 1
        except gradred.Error as problem:
            met = f"{type(problem).__name__}: {problem}"
            break
    record: Record = {"path": path, "calls": calls, "met": met}
    record["after_s"] = round(time.monotonic() - begin, 2)
    time.sleep(0.5)  # the ended process's memory has been freed by now
    record["cuCtxSynchronize"] = cuda.cuCtxSynchronize()
    try:
        alone = gradred.allreduce(library.put(np.ones(1000, np.float32)), comm=MPI.COMM_SELF)
        record["device_can_be_used"] = bool((np.asarray(library.get(alone)) == 1).all())
    except Exception as problem:  # includes the library's own errors
        record["device_can_be_used"] = f"{type(problem).__name__}: {problem}"
    return record
