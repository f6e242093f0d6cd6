#!/usr/bin/env bash
# mpi4py 4.1.2: scan and exscan of objects give wrong sums if the operation adds in place, as
# operator.iadd does with arrays; allreduce and reduce of the same give the right ones.
#
# An operation of objects is any function of two. One that changes its first argument and returns it
# saves a copy for each step, and is right in reduce and allreduce, which use each object once. A
# prefix sum combines each received object twice, into the result and into what is passed on. Both
# are the same object there, so parts are added again, without an error. Rank 0's own result, which
# is its input, contains later ranks as well.
#
# Seen (Python 3.11, MPICH 5.0.2, 4 ranks, rank r gives 10 to the power of r):
#   expected: scan [1, 11, 111, 1111], exscan [None, 1, 11, 111], reduce and allreduce 1111
#   operator.add:  scan [1, 11, 111, 1111], exscan [None, 1, 11, 111], 1111 and 1111
#   operator.iadd: scan [1111, 2121, 2211, 4221], exscan [None, 1111, 1111, 2211], 1111 and 1111
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import operator
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


def by_rank(method, op):
    got = getattr(comm, method)(np.array([10**comm.rank]), op=op)
    return comm.allgather(None if got is None else int(got[0]))


found = {}
for op in (operator.add, operator.iadd):
    scan, exscan = by_rank("scan", op), by_rank("exscan", op)
    total, at_root = by_rank("allreduce", op), by_rank("reduce", op)[0]
    found[op.__name__] = (scan, exscan, total, at_root)
    if comm.rank == 0:
        print(f"operator.{op.__name__}: scan {scan}, exscan {exscan}, {at_root} and {total[0]}")
right = ([1, 11, 111, 1111], [None, 1, 11, 111], [1111] * 4, 1111)
in_place = ([1111, 2121, 2211, 4221], [None, 1111, 1111, 2211], [1111] * 4, 1111)
sys.exit(found != {"add": right, "iadd": in_place})
PROGRAM
"$folder/env/bin/mpiexec" -n 4 "$folder/env/bin/python" "$folder/program.py"
