"""Where the ranks are: tests of one host's memory ask for what there is, or say why they do not."""

from __future__ import annotations

import socket

from mpi4py import MPI

ON_ONE_HOST = len(set(MPI.COMM_WORLD.allgather(socket.gethostname()))) == 1
WHY_NOT = "the ranks are on several hosts, which share no memory"
IN_MEMORY = "node" if ON_ONE_HOST else "hierarchical"  # an allreduce's plan
