#!/usr/bin/env bash
# MPICH 5.0.2: MPI_Iallreduce with MPI_MAX leaves the ranks with different results where one input
# is NaN, or where two zeros differ in sign. The blocking call on the same input does not.
#
# Each rank of MPI_Iallreduce combines its own value with the other's by `a > b ? a : b`, which
# depends on the order of a and b, and each rank has another order. A program in which all ranks
# stop when the maximum of a residual is NaN stops on some of them.
#
# Seen on 2 ranks (x86-64, Python 3.11, mpi4py 4.1.2), input [NaN, 1, -0] and [1, NaN, +0]:
#   Allreduce  rank 0: [1.0, nan, -0.0]  rank 1: [1.0, nan, -0.0]
#   Iallreduce rank 0: [1.0, nan, 0.0]   rank 1: [nan, 1.0, -0.0]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2 mpi4py==4.1.2 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.array([np.nan, 1.0, -0.0] if comm.rank == 0 else [1.0, np.nan, 0.0])
blocking, started = np.empty(3), np.empty(3)
comm.Allreduce(x, blocking, MPI.MAX)
comm.Iallreduce(x, started, MPI.MAX).Wait()
seen = {"Allreduce": comm.allgather(str(blocking.tolist()))}
seen["Iallreduce"] = comm.allgather(str(started.tolist()))
if comm.rank == 0:
    for call, results in seen.items():
        print(call, *(f"rank {rank}: {found}" for rank, found in enumerate(results)))
same = {call: len(set(results)) == 1 for call, results in seen.items()}
sys.exit(same != {"Allreduce": True, "Iallreduce": False})
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" "$folder/program.py"
