"""A rank of the job over several hosts that `gradred doctor` starts; it prints a line per part.

It runs as `python -m gradred.doctor.across_rank`. It prints its versions before MPI is initialised,
so that hosts with other versions are found even if their ranks cannot communicate.
"""

from __future__ import annotations

import json
import platform
import socket
import sys
import time
from typing import Any

MARK, PARTS = "gradred-doctor:", ("here", "met")
_MESSAGE_BYTES = 64 << 10
_CALLS = 20
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
    _tell("here", {"host": socket.gethostname(), "versions": versions})
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    _tell("met", _communicate())
    MPI.Finalize()
    return 0


def _communicate() -> dict[str, Any]:
    import numpy as np
    from mpi4py import MPI

    import gradred

    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    sent = np.arange(_MESSAGE_BYTES, dtype="uint32").astype("uint8")
    received = np.empty_like(sent)
    right, taken = True, []
    for _ in range(_CALLS):
        world.Barrier()
        begin = time.perf_counter()
        world.Sendrecv(sent + np.uint8(rank % 7), (rank + 1) % size, recvbuf=received)
        taken.append(time.perf_counter() - begin)
        right = right and np.array_equal(received, sent + np.uint8((rank - 1) % size % 7))
    comm = gradred.Comm(world)
    exact = True
    for count in _SIZES:
        values = np.arange(count, dtype="float64")
        result = gradred.allreduce(values * (rank + 1), comm=comm)
        exact = exact and np.array_equal(result, values * (size * (size + 1) // 2))
    small = np.ones(1)
    begin = time.perf_counter()
    for _ in range(_CALLS):
        comm.Allreduce(MPI.IN_PLACE, small)
    each = (time.perf_counter() - begin) / _CALLS
    exact = exact and float(small[0]) == float(size) ** _CALLS
    return {
        "rank": rank,
        "size": size,
        "host": socket.gethostname(),
        "message_right": bool(right),
        "message_bytes": _MESSAGE_BYTES,
        "message_us": float(np.median(taken)) * 1e6,
        "allreduce_right": bool(exact),
        "allreduce_us": each * 1e6,
    }


def _tell(part: str, values: dict[str, Any]) -> None:
    print(f"{MARK} {part} {json.dumps(values)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
