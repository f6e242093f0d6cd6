#!/usr/bin/env bash
# Intel MPI 2021.18.1: MPI_MAXLOC on several pairs of a value and an index in another rank's window
# writes wrong pairs. No error is raised, and what MPI_Get_accumulate fetches is right.
#
# The types have a gap after the index (MPI_DOUBLE_INT, MPI_LONG_INT) or before it (MPI_SHORT_INT),
# and the numbers found are those of pairs read as if there were none. MPI_Accumulate of
# MPI_DOUBLE_INT, everything in the rank's own window, in windows of MPI_Win_allocate on one host, and
# all of it on MPICH 5.0.2 are right.
#
# Seen on 2 ranks of one host (x86-64, Python 3.11, mpi4py 4.1.2); a window of MPI_Win_create has
# (1, 11), (2, 12), (3, 13), rank 0 combines them with (50, 3), (50, 4), (50, 5):
#   right, and found in its own window: (50, 3) (50, 4) (50, 5)
#   Get_accumulate of DOUBLE_INT: (50, 3) (2, 12) (3, 13)
#   Get_accumulate of LONG_INT: (50, 3) (17179869184, 50) (5, 33), the 33 not always
#   Accumulate of SHORT_INT: (50, 3276800) (50, 3276800) (50, 0)
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
VALUES = {"DOUBLE_INT": "f8", "LONG_INT": "i8", "SHORT_INT": "i2"}


def combined(name, call, target):
    kind, pair = getattr(MPI, name), np.dtype([("v", VALUES[name]), ("i", "i4")], align=True)
    assert pair.itemsize == kind.extent
    old = [(1, 11), (2, 12), (3, 13)]
    memory, fetched = np.array(old, pair), np.zeros(3, pair)
    window = MPI.Win.Create(memory, pair.itemsize, comm=comm)
    if comm.rank == 0:
        mine = np.array([(50, 3), (50, 4), (50, 5)], pair)
        window.Lock(target)
        if call == "Accumulate":
            window.Accumulate([mine, kind], target, [0, 3, kind], MPI.MAXLOC)
        else:
            window.Get_accumulate([mine, kind], [fetched, kind], target, [0, 3, kind], MPI.MAXLOC)
        window.Unlock(target)
    comm.Barrier()
    assert comm.rank or call == "Accumulate" or fetched.tolist() == old
    found = comm.bcast([(int(v), int(i)) for v, i in memory.tolist()], target)
    window.Free()
    return found


right, wrong = [(50, 3), (50, 4), (50, 5)], 0
CALLS = [("Get_accumulate", "DOUBLE_INT"), ("Get_accumulate", "LONG_INT"), ("Accumulate", "SHORT_INT")]
for call, name in CALLS:
    found = combined(name, call, 1)
    wrong += found != right and combined(name, call, 0) == right
    if comm.rank == 0:
        print(f"{call} of {name}:", *found, flush=True)
sys.exit(wrong != 3 or combined("DOUBLE_INT", "Accumulate", 1) != right)
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" "$folder/program.py"
