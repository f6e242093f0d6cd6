"""One rank of a job that lacks a resource: `resources.py LACK CALL`.

Each surviving rank prints one line of JSON: the error that it got (or none), after how many
seconds, and whether the communicator served another call.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import gradred

LACK, CALL = sys.argv[1:3]
WORLD = MPI.COMM_WORLD
WRAP = gradred.Comm  # loaded while that is still possible
LARGE = 9_000_000  # elements of 8 bytes: more than malloc has in reserve
MIB = 1 << 20


def no_descriptors() -> None:
    """From now on this process cannot open any file."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, 4096))


def no_memory(room: int) -> None:
    """From now on this process can allocate at most `room` bytes."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def all_back() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))


def fill_shm() -> None:
    """Fill /dev/shm completely."""
    assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize < 256 * MIB
    with open(f"/dev/shm/filled-by-{os.getpid()}", "wb", buffering=0) as file:
        os.unlink(file.name)
        KEPT.append(os.dup(file.fileno()))
        try:
            while True:
                file.write(bytes(64 << 10))
        except OSError:
            pass


KEPT: list[int] = []
x = np.full(LARGE if "large" in CALL else 2, 1.0)
y = np.empty_like(x)


def call(comm: gradred.Comm) -> None:
    if CALL == "new result":
        big = np.ones(LARGE)
        WORLD.Barrier()
        if WORLD.rank == 1:
            no_memory(4 * MIB)
        gradred.allreduce(big, comm=comm)
    elif "premul" in CALL:
        gradred.allreduce(x, gradred.premul(2.0), out=y, comm=comm)
    elif CALL == "array":
        gradred.empty(1 << 40)
    else:
        comm.Allreduce(x, y)


def lack() -> None:
    if (
        LACK == "descriptors of one rank" and WORLD.rank == 1
    ) or LACK == "descriptors of all ranks":
        no_descriptors()
    elif LACK == "descriptors, then a peer":
        no_descriptors()
        if WORLD.rank == 1:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
    elif LACK == "memory of one" and WORLD.rank == 1 and CALL != "new result":
        no_memory(4 * MIB)
    elif LACK == "/dev/shm" and WORLD.rank == 1:
        fill_shm()


if "first" not in CALL:
    WRAP(WORLD).Allreduce(MPI.IN_PLACE, np.zeros(1))
WORLD.Barrier()
lack()
if LACK == "/dev/shm":
    WORLD.Barrier()
comm = WRAP(WORLD)
begin = time.monotonic()
error: BaseException | None = None
try:
    call(comm)
except (gradred.Error, MemoryError) as caught:
    error = caught
seconds = time.monotonic() - begin
all_back()
expected = WORLD.size * (2 if "premul" in CALL else 1)
right = error is None and bool(np.all(y == expected))
again: bool | str
try:
    z = np.ones(3)
    comm.Allreduce(MPI.IN_PLACE, z)
    again = bool(np.all(z == WORLD.size))
except gradred.Error as second:
    again = type(second).__name__
print(
    json.dumps(
        {
            "rank": WORLD.rank,
            "error": type(error).__name__ if error else None,
            "text": str(error) if error else "",
            "seconds": seconds,
            "right": right,
            "again": again,
        }
    ),
    flush=True,
)
sys.exit(3 if error else 0)
