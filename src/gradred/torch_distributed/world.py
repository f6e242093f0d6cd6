"""The ranks of a program that names torch's backend "mpi", which gets them from MPI.

Such a program sets no RANK, WORLD_SIZE and address, and torch makes no store for it.
"""

from __future__ import annotations

import datetime
import os
import socket
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

from gradred import _core

_OF_TORCH = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def of_job(timeout: datetime.timedelta) -> tuple[Any, int, int]:
    """Return a store that all ranks reach, this rank, and their number.

    Blocking and collective over the ranks of the MPI job. Where no MPI launcher has started the
    ranks, they are those of torch's variables, as by torchrun, or this process alone.
    """
    if MPI.Is_initialized() and not MPI.Is_finalized() and MPI.COMM_WORLD.Get_size() > 1:
        found = _of_mpi(timeout)
    elif os.environ.keys() >= _OF_TORCH:
        found = next(dist.rendezvous("env://", timeout=timeout))
    else:
        found = dist.HashStore(), 0, 1
    store, rank, size = found
    store.set_timeout(timeout)
    return dist.PrefixStore("default_pg", store), rank, size


def _of_mpi(timeout: datetime.timedelta) -> tuple[Any, int, int]:
    world = MPI.COMM_WORLD
    rank, size, here = world.Get_rank(), world.Get_size(), _core.host_id()
    if rank == 0:
        store = dist.TCPStore("localhost", 0, size, True, timeout, wait_for_workers=False)
        world.bcast((here, os.environ.get("MASTER_ADDR") or socket.gethostname(), store.port))
        return store, rank, size
    host, address, port = world.bcast(None)
    address = "localhost" if host == here else address
    return dist.TCPStore(address, port, size, False, timeout), rank, size
