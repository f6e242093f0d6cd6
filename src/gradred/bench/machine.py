"""The machine of a measurement: the facts needed to repeat it, and the scale of its times."""

from __future__ import annotations

import collections
import datetime
import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import gradred
from gradred import _core
from gradred._util import cpu


def describe(comm: MPI.Intracomm, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return machine, versions, date and arguments, which are needed to repeat the measurement.

    Collective on `comm`.
    """
    ranks_on = collections.Counter(comm.allgather(platform.node()))
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "arguments": {key: _plain(value) for key, value in arguments.items()},
        "ranks": comm.size,
        "hosts": len(ranks_on),
        "ranks_on_hosts": list(ranks_on.values()),
        "machine": {
            "cpu": cpu.model(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "cores_of_rank_0": cpu.cores(),
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
    """Return name and version of the MPI in this process, such as `MPICH 5.0.2`."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def one_way_latency(comm: MPI.Intracomm) -> dict[str, Any] | None:
    """Measure the scale of the smallest times: one signal between ranks 0 and 1.

    Collective on `comm`; the same on every rank, None if there is one rank.
    """
    if comm.size == 1:
        return None
    seconds = comm.bcast(_core.one_way_latency(gradred.Comm(comm)))
    if seconds:
        return {"what": "one-way latency in shared memory, rank 0 to rank 1", "us": seconds * 1e6}
    us = ping_pong(comm, 1) * 1e6
    return {"what": "half of a 1-byte MPI ping-pong, called through mpi4py", "us": us}


def ping_pong(comm: MPI.Intracomm, nbytes: int, calls: int = 2000, blocks: int = 5) -> float:
    """Measure the seconds of `nbytes` from rank 0 to rank 1 by the MPI: half of a round trip.

    Collective on `comm`. Returns the median over the blocks, the same on every rank.
    """
    message, times = bytearray(nbytes), []
    for _ in range(blocks):
        comm.Barrier()
        start = time.perf_counter()
        for _ in range(calls if comm.rank < 2 else 0):
            if comm.rank == 0:
                comm.Send(message, 1)
                comm.Recv(message, 1)
            else:
                comm.Recv(message, 0)
                comm.Send(message, 0)
        times.append((time.perf_counter() - start) / calls / 2)
    seconds: float = comm.bcast(float(np.median(times)))
    return seconds


def message_gap(comm: MPI.Intracomm, messages: int = 16, calls: int = 100) -> float:
    """Measure the seconds of each further message that a rank sends at the same time, by the MPI.

    Collective on `comm`, with at least two ranks; the same on every rank.
    """
    few, many = (_window(comm, number, calls) for number in (1, messages))
    seconds: float = comm.bcast(max(0.0, many - few) / (messages - 1))
    return seconds


def _window(comm: MPI.Intracomm, messages: int, calls: int) -> float:
    """Time from rank 0 to rank 1 so many messages in flight together, and an answer."""
    data, times = [bytearray(8) for _ in range(messages)], []
    for _ in range(calls if comm.rank < 2 else 0):
        begin = time.perf_counter()
        if comm.rank == 0:
            MPI.Request.Waitall([comm.Isend(each, 1) for each in data])
            comm.Recv(data[0], 1)
        else:
            MPI.Request.Waitall([comm.Irecv(each, 0) for each in data])
            comm.Send(data[0], 0)
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) if times else 0.0


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Path) else value  # the folder is local to this machine
