"""A rank of a job that `gradred doctor` starts; it prints a line per part.

It runs as `python -m gradred.doctor.rank`. It prints its versions before MPI is initialised, so
that hosts with other versions are found even if their ranks cannot communicate.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from typing import Any

from gradred.doctor import near
from gradred.doctor.job import MARK
from gradred.launch import variables

_MESSAGE_BYTES = 64 << 10
# Small numbers: on a busy machine each call, and each turn of the flag, may wait for a core.
_MESSAGES, _CALLS, _TURNS = 20, 100, 64
_SIZES = (1, 128 << 10)  # float64: 8 bytes and 1 MiB


def main() -> int:
    """Print the versions, communicate, and print the results."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    from gradred import __version__

    name, numbers = MPI.get_vendor()
    versions = {
        "gradred": __version__,
        "Python": platform.python_version(),
        "mpi4py": mpi4py.__version__,
        "MPI": f"{name} {'.'.join(map(str, numbers))}",
    }
    _report("here", {"host": socket.gethostname(), "versions": versions})
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    world = MPI.COMM_WORLD
    cores = sorted(os.sched_getaffinity(0))
    report = {
        "rank": world.rank,
        "size": world.size,
        "host": socket.gethostname(),
        "cores": cores,
        "threads": {name: os.environ.get(name, "") for name in variables.THREAD_VARIABLES},
    }
    if world.size > 1:  # else the launcher is of another MPI
        report |= _messages(world) | _allreduces(world)
    report["memory"] = near.memory_of(cores)
    _report("met", report)
    MPI.Finalize()
    return 0


def _messages(world: Any) -> dict[str, Any]:
    import numpy as np

    rank, size = world.rank, world.size
    sent = np.arange(_MESSAGE_BYTES, dtype="uint32").astype("uint8")
    received = np.empty_like(sent)
    right, taken = True, []
    for _ in range(_MESSAGES):
        world.Barrier()
        begin = time.perf_counter()
        world.Sendrecv(sent + np.uint8(rank % 7), (rank + 1) % size, recvbuf=received)
        taken.append(time.perf_counter() - begin)
        right = right and np.array_equal(received, sent + np.uint8((rank - 1) % size % 7))
    return {
        "message_right": bool(right),
        "message_bytes": _MESSAGE_BYTES,
        "message_us": float(np.median(taken)) * 1e6,
    }


def _allreduces(world: Any) -> dict[str, Any]:
    import numpy as np

    import gradred
    from gradred import _core

    comm, size = gradred.Comm(world), world.size
    exact = True
    for count in _SIZES:
        values = np.arange(count, dtype="float64")
        result = gradred.allreduce(values * (world.rank + 1), comm=comm)
        exact = exact and np.array_equal(result, values * (size * (size + 1) // 2))
    one, total = np.ones(1), np.empty(1)
    begin = time.perf_counter()
    for _ in range(_CALLS):
        comm.Allreduce(one, total)
    each = (time.perf_counter() - begin) / _CALLS
    flags = [_core.one_way_latency(comm, turns=_TURNS) for _ in range(3)]
    info = _core.comm_info(comm)
    return {
        "allreduce_right": bool(exact and total[0] == size),
        "allreduce_us": each * 1e6,
        "flag_ns": min(flags) * 1e9,
        "shares_memory": info["shares_memory"],
        "node_reason": info["node_reason"],
    }


def _report(part: str, values: dict[str, Any]) -> None:
    print(f"{MARK} {part} {json.dumps(values)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
