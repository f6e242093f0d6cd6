#!/usr/bin/env bash
# MPICH 5.0.2: the blocking MPI_Allreduce with MPI_MINLOC or MPI_MIN of one number leaves the ranks
# with different results where a rank has NaN. Some get neither NaN nor the smallest number. Four
# numbers on four ranks give the same on all of them.
#
# In calls of fewer numbers than ranks (than the largest power of two of ranks) each rank combines
# for itself, in its own order, by a comparison whose result with NaN depends on the order. A program
# that finds the rank with the smallest value and then broadcasts from there gets several roots.
#
# Seen on 4 ranks (x86-64, Python 3.11, mpi4py 4.1.2), values NaN, 1, 2, 3 on ranks 0, 1, 2, 3:
#   MINLOC of one: nan of rank 0; 1.0 of rank 1; 2.0 of rank 2; 1.0 of rank 1
#   MIN of one: 1.0; 2.0; 1.0; nan
#   MIN of four, same on all ranks: True
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
value = [float("nan"), 1.0, 2.0, 3.0][comm.rank]
pair = np.array((value, comm.rank), np.dtype([("value", "f8"), ("rank", "i4")], align=True))
owner = np.zeros_like(pair)
comm.Allreduce([pair, 1, MPI.DOUBLE_INT], [owner, 1, MPI.DOUBLE_INT], MPI.MINLOC)
owners = comm.allgather(f"{owner['value']} of rank {owner['rank']}")


def minima(count):
    found = np.zeros(count)
    comm.Allreduce(np.full(count, value), found, MPI.MIN)
    return comm.allgather(str(found.tolist()))


one, four = minima(1), minima(4)
if comm.rank == 0:
    print("MINLOC of one:", "; ".join(owners))
    print("MIN of one:", "; ".join(text.strip("[]") for text in one))
    print("MIN of four, same on all ranks:", len(set(four)) == 1)
sys.exit((len(set(owners)), len(set(one)), len(set(four))) != (3, 3, 1))
PROGRAM
"$folder/env/bin/mpiexec" -n 4 "$folder/env/bin/python" "$folder/program.py"
