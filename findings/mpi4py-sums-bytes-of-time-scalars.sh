#!/usr/bin/env bash
# NumPy 2.4.6 and mpi4py 4.1.2: a timedelta64 scalar, as `durations.sum()` returns, is reduced byte
# by byte; an array of the same type is refused.
#
# NumPy has no buffer format for times, so arrays of them raise ValueError. Its scalars of these
# types show their eight bytes instead (format B, shape (8,)). mpi4py takes them for eight unsigned
# characters and adds each for itself: two ranks with 200 s each get 144 s, as 200 + 200 is 400, and
# the byte keeps 400 - 256.
#
# Seen (Python 3.11, MPICH 5.0.2, 2 ranks):
#   scalar: format B, shape (8,); array: ValueError
#   Allreduce of the scalar: 144 s; of an array: BufferError
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
durations = np.array([150, 50], "timedelta64[s]")
scalar, array = durations.sum(), durations[:1]
seen = memoryview(scalar)


def error_of(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "no error"


of_array = error_of(lambda: memoryview(array))
result = bytearray(8)
comm.Allreduce(scalar, result)
total = int(np.frombuffer(result, "timedelta64[s]")[0].astype(int))
refused = error_of(lambda: comm.Allreduce(array, np.zeros_like(array)))
if comm.rank == 0:
    print(f"scalar: format {seen.format}, shape {seen.shape}; array: {of_array}")
    print(f"Allreduce of the scalar: {total} s; of an array: {refused}")
found = (seen.format, seen.shape, of_array, total, refused)
sys.exit(found != ("B", (8,), "ValueError", 144, "BufferError"))
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" "$folder/program.py"
