"""Calls during which rank 0 gets a signal from a peer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

SIGNAL = signal.SIGUSR1

# A rank that waits looks for Ctrl-C every 30 ms, and waits for its peers 30 ms more. If a signal's
# handler ran within the call, it would run at such a look.
LATE, LATE_AFTER_CTRL_C = 0.05, 0.12


class HandlerError(Exception):
    """What handlers of the tests raise."""


def during(
    call: Callable[[], Any],
    handler: Callable[[], None],
    number: int = SIGNAL,
    late: float | None = None,
) -> Any:
    """Make a call on all ranks, and return its result. Rank 0 gets the signal while it waits.

    Rank 1 sends the signal, and comes `late` seconds after it.
    """
    world = MPI.COMM_WORLD
    if late is None:
        late = LATE_AFTER_CTRL_C if number == signal.SIGINT else LATE
    ran = []

    def handle(*_: object) -> None:
        ran.append(True)
        handler()

    before = signal.signal(number, handle) if world.rank == 0 else None
    used = time.process_time()
    pid, used = world.bcast((os.getpid(), used), root=0)
    try:
        if world.rank == 1:
            wait_in_call(pid, used)
            os.kill(pid, number)
            time.sleep(late)
        result = call()
        assert ran == [True] * (world.rank == 0)
    finally:
        if world.rank == 0:
            signal.signal(number, before)
    return result


def wait_in_call(pid: int, used: float) -> None:
    """Return when another process is in the call that it was about to make.

    It is if it has used more of a core than it needs to get there, or sleeps after 50 ms.

    Args:
        pid: of the process.
        used: its seconds on cores before.
    """
    clock = (~pid << 3) | 2  # as clock_getcpuclockid() has it
    begin = time.monotonic()
    while time.clock_gettime(clock) < used + 0.003 and time.monotonic() < begin + 0.05:
        time.sleep(0.001)
