"""The peer gloo: `torch.distributed` on the same ranks, which rendezvous through MPI."""

from __future__ import annotations

import atexit
import datetime
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed
from mpi4py import MPI

from gradred.bench.collectives import Mode
from gradred.bench.contenders import Calls, Started
from gradred.bench.inputs import Array

_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


def binder(op: str, mode: Mode, world: MPI.Intracomm) -> Callable[[Array, Array], Calls]:
    """Return a function that binds gloo's all_reduce, which is in place; collective."""
    _join(world)
    reduce_op = getattr(torch.distributed.ReduceOp, _OPS[op])

    def bind(send: Array, receive: Array) -> Calls:
        vector = np.zeros_like(send)  # its own memory: sums of sums would overflow the type
        tensor = torch.from_numpy(vector)

        def run() -> None:
            torch.distributed.all_reduce(tensor, reduce_op)

        def start() -> Started:
            work: Any = torch.distributed.all_reduce(tensor, reduce_op, async_op=True)
            return SimpleNamespace(Wait=work.wait, Test=work.is_completed)

        def load() -> None:
            vector[:] = send

        def unload() -> None:
            vector.fill(0)

        begin = start if mode == "nonblocking" else None
        return Calls(run, begin, lambda: vector, load, unload)

    return bind


def _join(world: MPI.Intracomm) -> None:
    """Make the process group once; rank 0 has the store for the addresses."""
    if torch.distributed.is_initialized():
        return
    limit = datetime.timedelta(seconds=60)
    host = world.bcast(socket.gethostname())
    if world.rank == 0:
        store = torch.distributed.TCPStore(
            host, 0, world.size, is_master=True, wait_for_workers=False, timeout=limit
        )
        world.bcast(store.port)
    else:
        port = world.bcast(None)
        store = torch.distributed.TCPStore(host, port, world.size, timeout=limit)
    torch.distributed.init_process_group(
        "gloo", store=store, rank=world.rank, world_size=world.size, timeout=limit
    )
    atexit.register(torch.distributed.destroy_process_group)
