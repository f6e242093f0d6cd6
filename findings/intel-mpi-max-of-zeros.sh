#!/usr/bin/env bash
# Intel MPI 2021.18.1: the blocking MPI_Allreduce with MPI_MAX or MPI_MIN leaves the ranks with zeros
# of different sign where the inputs differ in sign, if the vector is not very short. Four doubles
# are the same on both ranks, sixteen are not.
#
# Zeros of both signs are equal, but not what is computed from them: 1 / x is inf on one rank and
# -inf on the other, and checksums of the results differ.
#
# Seen on 2 ranks of one host (x86-64, Python 3.11, mpi4py 4.1.2), rank 0 has -0, rank 1 has +0:
#   MAX of 4: rank 0: 0.0, rank 1: 0.0
#   MAX of 16: rank 0: 0.0, rank 1: -0.0
#   MIN of 16: rank 0: 0.0, rank 1: -0.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  impi-rt==2021.18.1 mpi4py==4.1.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
same = []
for name, count in (("MAX", 4), ("MAX", 16), ("MIN", 16)):
    found = np.ones(count)
    comm.Allreduce(np.full(count, -0.0 if comm.rank == 0 else 0.0), found, getattr(MPI, name))
    zeros = comm.allgather(sorted({str(value) for value in found.tolist()}))
    same.append(zeros[0] == zeros[1])
    if comm.rank == 0:
        print(f"{name} of {count}: rank 0: {', '.join(zeros[0])}, rank 1: {', '.join(zeros[1])}")
sys.exit(same != [True, False, False])
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" "$folder/program.py"
