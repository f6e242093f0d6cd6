#!/usr/bin/env bash
# numba-mpi 1.3.1 (MPICH 5.0.2, 2 ranks): results go to the first bytes of the receiving array,
# whatever its strides and its type; the status is 0. Called from Python or from compiled code.
#
#   numba_mpi.allreduce(rank + 1, total)          total of float64: 1.5e-323 in place of 3.0, as
#                                                 the bits of the integer 3 are written there
#   numba_mpi.allreduce(x, table[:, 0])           the column keeps two of its three old values, and
#                                                 the other column loses one
#   numba_mpi.bcast(table[:, 0], 0)               refused: it asks for a contiguous array
#
# Inputs that are not contiguous are copied, so that views are right as input and wrong as result.
# Counters are integers and sums start as numpy.zeros(1), so the first case needs no strange program.
#
# Seen (x86-64, Python 3.11, numba 0.68.1):
#   python: 1.5e-323, table [[2.0, 4.0], [6.0, 9.0], [9.0, 9.0]]
#   compiled: the same
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
    numba-mpi==1.3.1 numba==0.68.1 mpi4py==4.1.2 mpich==5.0.2
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numba
import numba_mpi
import numpy as np

rank = numba_mpi.rank()


def add_number(total):
    return numba_mpi.allreduce(numba_mpi.rank() + 1, total)


def add_to_column(x, table):
    return numba_mpi.allreduce(x, table[:, 0])


def seen(number, column):
    total, table = np.zeros(1), np.full((3, 2), 9.0)
    status = number(total), column(np.array([1.0, 2.0, 3.0]), table)
    return status, total[0].item(), table.tolist()


try:
    numba_mpi.bcast(np.zeros((3, 2))[:, 0], 0)
    refuses = False
except Exception:
    refuses = True
found = {"python": seen(add_number, add_to_column)}
found["compiled"] = seen(numba.njit(add_number), numba.njit(add_to_column))
if rank == 0:
    print(*(f"{way}: {one}" for way, one in found.items()), f"bcast refuses: {refuses}", sep="\n")
expected = ((0, 0), 1.5e-323, [[2.0, 4.0], [6.0, 9.0], [9.0, 9.0]])
sys.exit(set(map(str, found.values())) != {str(expected)})
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" "$folder/program.py"
