#!/usr/bin/env bash
# mpi4py 4.1.2: the request of Iallreduce, Ireduce, Iscan and their kin does not keep its buffers
# alive; that of Isend, Irecv, Ibcast and Iallgather does.
#
# So `comm.Iallreduce(x.copy(), y)` and a later Wait read memory that Python has given back. Between
# two ranks such a program reads other numbers or ends with a segmentation fault; this script only
# looks whether the arrays are alive while the request is.
#
# Seen (Python 3.11, MPICH 5.0.2, one rank):
#   alive while the request is: Ibcast True, Iallgather True, Irecv True,
#   Iallreduce False, Ireduce False, Iscan False, Allreduce_init False
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2 mpi4py==4.1.2 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys
import weakref

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_SELF
STARTS = {
    "Ibcast": lambda x, y: comm.Ibcast(x, 0),
    "Iallgather": comm.Iallgather,
    "Irecv": lambda x, y: comm.Irecv(x, 0, 1),
    "Iallreduce": comm.Iallreduce,
    "Ireduce": comm.Ireduce,
    "Iscan": comm.Iscan,
    "Allreduce_init": comm.Allreduce_init,
}


def is_kept(start):
    x, y = np.zeros(10), np.zeros(10)
    seen = weakref.ref(x)
    request = start(x, y)
    del x, y
    return seen() is not None and request is not None


kept = {name: is_kept(start) for name, start in STARTS.items()}
print("alive while the request is:", ", ".join(f"{name} {alive}" for name, alive in kept.items()))
sys.exit(list(kept.values()) != [True] * 3 + [False] * 4)
PROGRAM
# The message that nobody sends: MPI is not finalized, so that nothing waits for it.
MPI4PY_RC_FINALIZE=0 "$folder/env/bin/python" "$folder/program.py"
