#!/usr/bin/env bash
# mpi4py 4.1.2: the MPI datatype that `mpi4py.util.dtlib.from_numpy_dtype` makes of a NumPy string
# has one character, however long the string: S5 becomes one byte, U3 one wide character. In a
# record only the first letter of each text arrives, without an error. The extent of the record is
# right, so numbers after a text arrive whole.
#
# An array of strings alone, given to a call such as Bcast without a datatype, is refused:
# KeyError "cannot map '5s' to MPI datatype".
#
# Programs describe records such as (name of a parameter, loss) by this function; names that begin
# alike become equal.
#
# Seen on 2 ranks (x86-64, Python 3.11, MPICH 5.0.2, NumPy 2.4.6), a broadcast of
# [('alpha', 1.5, 'xyz'), ('beta', 2.5, 'uvw')]:
#   record of 25 bytes: extent 25, size 13
#   S5: extent 1, back as |S1
#   rank 1 got [(b'a', 1.5, 'x'), (b'b', 2.5, 'u')]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

comm = MPI.COMM_WORLD
record = np.dtype([("name", "S5"), ("loss", "f8"), ("label", "U3")])
kind, text = dtlib.from_numpy_dtype(record).Commit(), dtlib.from_numpy_dtype("S5")
sent = [(b"alpha", 1.5, "xyz"), (b"beta", 2.5, "uvw")]
x = np.array(sent, record) if comm.rank == 0 else np.zeros(2, record)
comm.Bcast([x, 2, kind], 0)
sizes = record.itemsize, kind.Get_extent()[1], kind.Get_size(), text.Get_extent()[1]
back = str(dtlib.to_numpy_dtype(text))
if comm.rank == 1:
    print("record of {} bytes: extent {}, size {}".format(*sizes))
    print(f"S5: extent {sizes[3]}, back as {back}")
    print("rank 1 got", x.tolist())
expected = sent if comm.rank == 0 else [(b"a", 1.5, "x"), (b"b", 2.5, "u")]
sys.exit(x.tolist() != expected or sizes != (25, 25, 13, 1) or back != "|S1")
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" "$folder/program.py"
