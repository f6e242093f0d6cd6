"""One rank of a job whose rank 0 gets Ctrl-C in a call: `interrupted.py soon|never|persistent`.

With "soon" the peers come 20 ms after it, in several rounds on communicators of their own. A round
that has taken rank 1 too long does not count. With "never" they come when rank 0 has left the call,
with "persistent" also, to a persistent operation.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import gradred

COUNT = int(sys.argv[2])
ROUNDS = 12
GRACE = 0.029  # seconds; rank 0 leaves no call sooner
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
x, y = np.ones(COUNT), np.zeros(COUNT)


def usable() -> gradred.Comm:
    """A communicator after its first call."""
    made = gradred.Comm(WORLD.Dup())
    made.Allreduce(x, y)
    return made


def kept(comm: gradred.Comm) -> bool | None:
    """Whether rank 0 gets KeyboardInterrupt after the call, and all can make the next one.

    None: the peers were late.
    """
    pid = WORLD.bcast(os.getpid())
    begin, in_time, right = 0.0, True, RANK != 0
    y.fill(0)
    try:
        if RANK == 1:
            time.sleep(0.1)
            begin = time.monotonic()
            os.kill(pid, signal.SIGINT)
            time.sleep(0.02)
        comm.Allreduce(x, y)
    except KeyboardInterrupt:
        right = RANK == 0
    except gradred.PeerLost:
        right = False
    in_time = time.monotonic() - begin < GRACE
    try:
        comm.Allreduce(x, x.copy())
    except gradred.PeerLost:
        right = False
    right = right and bool((y == SIZE).all())
    return WORLD.allreduce(right, MPI.LAND) if WORLD.bcast(in_time, root=1) else None


def left_alone(call: Callable[[], object]) -> tuple[float, str]:
    """The seconds until rank 0 gets KeyboardInterrupt, and what the peers get then."""
    if RANK:
        WORLD.Barrier()
        try:
            call()
        except gradred.PeerLost as error:
            return 0.0, str(error)
    sent: list[float] = []

    def press() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(0.2, press).start()
    try:
        call()
    except KeyboardInterrupt:
        seconds = time.monotonic() - sent[0]
        WORLD.Barrier()
        return seconds, "KeyboardInterrupt"
    return -1.0, "no error"


if sys.argv[1] == "soon":
    rounds = [kept(comm) for comm in [usable() for _ in range(ROUNDS)]]
    counted = [one for one in rounds if one is not None]
    print(json.dumps({"rank": RANK, "counted": len(counted), "kept": sum(counted)}), flush=True)
elif sys.argv[1] == "persistent":
    comm = usable()
    lost = comm.Allreduce_init(x, y)
    lost()
    seconds, error = left_alone(lost)
    if RANK == 0:
        try:
            lost()
        except gradred.PeerLost as again:
            error = str(again)
    lost.Free()
    remade = []  # of several, one takes the place of the lost one
    for _ in range(3):
        y.fill(0)
        remade.append(comm.Allreduce_init(x, y))
        remade[-1]()
        remade[-1].Free()
    print(json.dumps({"rank": RANK, "error": error, "sum": y.tolist()}), flush=True)
else:
    comm = usable()
    seconds, error = left_alone(lambda: comm.Allreduce(x, y))
    print(json.dumps({"rank": RANK, "seconds": seconds, "error": error}), flush=True)
