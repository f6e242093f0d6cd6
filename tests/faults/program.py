"""One rank of a fault test: `program.py FAULT CALL`; the fault happens to rank 1.

Each other rank prints one line of JSON: the error that it got, after how many seconds, and after
how many seconds the next call on the communicator failed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time

import numpy as np
import stepped
from mpi4py import MPI

import gradred
from gradred import _core
from gradred._util import clock

FAULT, CALL = sys.argv[1:3]
COUNTS = {
    "small": 2,
    "large": 6_000_000,
    "non-blocking": 2,
    "large non-blocking": 3_000_000,
    "tested": 2,
    "large tested": 3_000_000,
}
WORLD = MPI.COMM_WORLD
COMM = gradred.Comm(WORLD)


def let_time_pass() -> None:
    """Step the clock of the waiting ranks past their limit.

    If a report is expected, the first step is three quarters of the limit.
    """
    if stepped.VARIABLE not in os.environ:
        time.sleep(60)
    limit, others = float(os.environ["GRADRED_TIMEOUT"]), WORLD.size - 1
    if "GRADRED_WARN_AFTER" in os.environ:
        stepped.let_pass(0.75 * limit, ranks=others)
        time.sleep(1)
    stepped.let_pass(limit, ranks=others)
    stepped.end_grace()


# MPI_Isend as gradred calls it, with handles as integers of 64 bits.
SEND = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_int),
    *(ctypes.c_size_t, ctypes.c_void_p),
)
kept: list[object] = []  # functions that the extension calls


def fail_next_message() -> None:
    """Let the MPI report an error for the next message of this rank."""

    def send(*given: int) -> int:
        _core.replace_isend(real)
        return MPI.ERR_OTHER

    function = SEND(send)
    kept.append(function)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    real = _core.replace_isend(address)


def meet_fault() -> None:
    """Do to rank 1 what FAULT says, while the others are in the call."""
    time.sleep(0.3)
    if FAULT in ("killed", "killed early"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif FAULT == "never calls":
        let_time_pass()
    elif FAULT == "raises":
        raise RuntimeError("on purpose")
    elif FAULT == "exits":
        sys.exit(7)
    elif FAULT == "returns":
        sys.exit(0)
    elif FAULT == "error below":
        fail_next_message()
    elif FAULT == "finalizes":
        MPI.Finalize()
        sys.exit(0)
    elif FAULT == "interrupted":  # within a call, or between two calls
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()


x = np.ones(COUNTS.get(CALL, 100))
y = np.empty_like(x)
if FAULT != "killed early":
    COMM.Allreduce(MPI.IN_PLACE, np.zeros(1))
persistent = COMM.Allreduce_init(x, y) if CALL == "persistent" else None


def call() -> None:
    if "non-blocking" in CALL:
        COMM.Iallreduce(x, y).Wait()
    elif "tested" in CALL:
        request = COMM.Iallreduce(x, y)
        while not request.Test():
            time.sleep(0.001)
    elif persistent is not None:
        persistent.Start()
        persistent.Wait()
    else:
        COMM.Allreduce(x, y)


WORLD.Barrier()
if WORLD.rank == 1:
    meet_fault()
begin = clock.now()
try:
    while True:
        call()
except gradred.Error as error:
    seconds = clock.now() - begin
    again = clock.now()
    try:
        COMM.Allreduce(MPI.IN_PLACE, np.zeros(1))
        later = "no error"
    except gradred.Error as second:
        later = type(second).__name__
    print(
        json.dumps(
            {
                "rank": WORLD.rank,
                "error": type(error).__name__,
                "text": str(error),
                "seconds": seconds,
                "later": later,
                "later_seconds": clock.now() - again,
            }
        ),
        flush=True,
    )
    if WORLD.rank == 2:
        sys.exit(3)
    if WORLD.rank == 3:
        raise
