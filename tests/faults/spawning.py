"""A rank that spawns another one, continues without it, and fails with status 7."""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

import gradred

parent = MPI.Comm.Get_parent()
if parent != MPI.COMM_NULL:
    gradred.allreduce(np.ones(2), comm=gradred.Comm(parent.Merge(True)))
    sys.exit()
comm = gradred.Comm(MPI.COMM_SELF.Spawn(sys.executable, [__file__], 1).Merge(False))
try:
    while True:
        gradred.allreduce(np.ones(2), comm=comm)
except gradred.PeerLost:
    comm = comm.shrink()
assert gradred.allreduce(np.ones(2), comm=comm)[0] == 1
sys.exit(7)
