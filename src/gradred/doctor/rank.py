"""A rank of the job that `gradred doctor` starts.

Each process writes its own file. So ranks that wrongly run alone are detected too.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from typing import Any

import numpy as np
from mpi4py import MPI

import gradred
from gradred import _core
from gradred.launch import variables

# Small numbers: on a busy machine each call, and each turn of the flag, may wait for a core.
_CALLS, _TURNS = 100, 64


def main(folder: str) -> None:
    """Write the report of this rank to `folder`/PID.json."""
    world = MPI.COMM_WORLD
    report: dict[str, Any] = {
        "rank": world.Get_rank(),
        "size": world.Get_size(),
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": {name: os.environ.get(name, "") for name in variables.THREAD_VARIABLES},
    }
    if world.Get_size() > 1:
        report |= _communicate(gradred.Comm(world))
    pathlib.Path(folder, f"{os.getpid()}.json").write_text(json.dumps(report))


def _communicate(comm: gradred.Comm) -> dict[str, Any]:
    rank, size = comm.Get_rank(), comm.Get_size()
    x, y = np.arange(1000.0) + rank, np.empty(1000)
    comm.Allreduce(x, y)
    right = bool((y == np.arange(1000.0) * size + size * (size - 1) / 2).all())
    comm.Sendrecv(np.zeros(1), (rank + 1) % size, recvbuf=np.zeros(1))  # uses the MPI's own path
    small = np.ones(1)
    comm.Allreduce(MPI.IN_PLACE, small)
    begin = time.perf_counter()
    for _ in range(_CALLS):
        comm.Allreduce(MPI.IN_PLACE, small)
    each = (time.perf_counter() - begin) / _CALLS
    flags = [_core.one_way_latency(comm, turns=_TURNS) for _ in range(3)]
    info = _core.comm_info(comm)
    return {
        "right": right,
        "allreduce_us": each * 1e6,
        "flag_ns": min(flags) * 1e9,
        "shares_memory": info["shares_memory"],
        "node_reason": info["node_reason"],
    }
