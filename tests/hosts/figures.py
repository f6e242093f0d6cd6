"""A rank of test_figures: plans of many lengths, as rank 0 prints them, and an exact sum by each.

The program fails if the plans are not the same on all ranks.
"""

import json

import numpy as np
from mpi4py import MPI

import gradred
from gradred import _core

comm = gradred.Comm(MPI.COMM_WORLD)
lengths = [1, 2, 1000, 16384, 100_000]
for count in lengths:
    x = np.arange(count, dtype="float32") % 1000 + comm.rank
    y = np.empty_like(x)
    comm.Allreduce(x, y)
    ranks = comm.size
    assert np.array_equal(y, ranks * (x - comm.rank) + sum(range(ranks))), count
calls = [_core.Call("allreduce", None, 0, count, "float32") for count in lengths]
plans = [_core.plan_for(comm, call) for call in calls]
everyone = MPI.COMM_WORLD.allgather([(plan["hash"], plan["seconds"]) for plan in plans])
assert all(one == everyone[0] for one in everyone), everyone
# Started calls never use the MPI's call, because they could not announce it.
started = [_core.plan_for(comm, call, blocking=False)["plan"] for call in calls]
assert "mpi" not in started
if comm.rank == 0:
    print(json.dumps([[plan["plan"], plan["reason"]] for plan in plans]))
