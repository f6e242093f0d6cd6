"""Where the ranks are, for tests that depend on shared memory, or are skipped without it."""

from __future__ import annotations

import socket

from mpi4py import MPI

ON_ONE_HOST = len(set(MPI.COMM_WORLD.allgather(socket.gethostname()))) == 1
WHY_NOT = "the ranks are on several hosts, which share no memory"
IN_MEMORY = "node" if ON_ONE_HOST else "hierarchical"  # the plan of an allreduce
