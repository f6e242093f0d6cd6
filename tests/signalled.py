"""Calls during which rank 0 gets a signal from a peer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

SIGNAL = signal.SIGUSR1


class HandlerError(Exception):
    """What handlers of the tests raise."""


def during(
    call: Callable[[], Any], handler: Callable[[], None], number: int = SIGNAL, late: float = 0.15
) -> Any:
    """Make a call on all ranks, and return its result. Rank 0 gets the signal while it waits.

    Rank 1 sends the signal, and comes `late` seconds after it.
    """
    world = MPI.COMM_WORLD
    pids = world.allgather(os.getpid())
    ran = []

    def handle(*_: object) -> None:
        ran.append(True)
        handler()

    before = signal.signal(number, handle) if world.rank == 0 else None
    try:
        if world.rank == 1:
            time.sleep(0.05)
            os.kill(pids[0], number)
            time.sleep(late)
        result = call()
        assert ran == [True] * (world.rank == 0)
    finally:
        if world.rank == 0:
            signal.signal(number, before)
    return result
