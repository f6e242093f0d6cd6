"""One rank of a job over several hosts whose last rank is late: `late.py SECONDS CALL`."""

from __future__ import annotations

import socket
import sys
import time

import numpy as np
from mpi4py import MPI

import gradred

WORLD = MPI.COMM_WORLD
COMM = gradred.Comm(WORLD)
x = np.ones(1000)
if sys.argv[2] == "later call":
    COMM.Allreduce(MPI.IN_PLACE, x)
    assert x[0] == WORLD.size
if WORLD.rank == WORLD.size - 1:
    time.sleep(float(sys.argv[1]))
try:
    if sys.argv[2] == "first, non-blocking":
        COMM.Iallreduce(MPI.IN_PLACE, x).Wait()
    else:
        COMM.Allreduce(MPI.IN_PLACE, x)
except gradred.Error as error:
    print(f"{socket.gethostname()} {type(error).__name__}: {error}", flush=True)
    sys.exit(3)
