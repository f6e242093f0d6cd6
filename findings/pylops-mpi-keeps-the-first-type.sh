#!/usr/bin/env bash
# pylops-mpi 0.3.0, 2 ranks: sums and products of distributed arrays have the type of the left array,
# and their values are cut to it: integers times 0.5 are rounded towards 0, `a + b` differs from
# `b + a`, and `0.5 * a` is cut as well. Complex multiples of a real array lose their imaginary part
# (there NumPy warns). `dot` of two arrays of int8 wraps around.
#
# NumPy, and pylops on the same arrays, give the wider type. A model or a mask that was made by
# `arange` or read as integers becomes the first array of an iteration, which then stands still.
#
# Seen (x86-64, Python 3.11, MPICH 5.0.2, mpi4py 4.1.2, NumPy 2.4.6), a = [1, 2, 3], b = a + 0.5:
#   0.5 * a: [0, 1, 1]
#   a + b: [2, 4, 6], b + a: [2.5, 4.5, 6.5]
#   dot of int8 [100, 100] with itself: 32
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6 pylops==2.8.0 pylops-mpi==0.3.0
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
from mpi4py import MPI
from pylops_mpi import DistributedArray

a = DistributedArray.to_dist(np.array([1, 2, 3]))
b = DistributedArray.to_dist(np.array([1.5, 2.5, 3.5]))
small = DistributedArray.to_dist(np.array([100, 100], np.int8))
half = (0.5 * a).asarray().tolist()
sums = (a + b).asarray().tolist(), (b + a).asarray().tolist()
dot = int(small.dot(small))
if MPI.COMM_WORLD.rank == 0:
    print(f"0.5 * a: {half}")
    print(f"a + b: {sums[0]}, b + a: {sums[1]}")
    print(f"dot of int8 [100, 100] with itself: {dot}")
sys.exit((half, sums, dot) != ([0, 1, 1], ([2, 4, 6], [2.5, 4.5, 6.5]), 32))
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" "$folder/program.py"
