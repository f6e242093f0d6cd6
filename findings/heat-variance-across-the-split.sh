#!/usr/bin/env bash
# heat 1.8.0, 2 ranks: `heat.var(x, axis)` and `heat.std` divide by n along the axis that is split and
# by n - 1 along every other one, with the same default ddof=0. The same matrix has other variances
# of its rows after a resplit; ddof=0 is not heeded in one direction.
#
# Seen (x86-64, Python 3.11, torch 2.11.0), x = [[1, 2], [3, 6], [0, 4], [9, 1]], axis=1:
#   rows split:     [0.5, 4.5, 8.0, 32.0]     (divided by 1)
#   columns split:  [0.25, 2.25, 4.0, 16.0]   (divided by 2, as ddof=0 says and NumPy does)
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
    heat==1.8.0 torch==2.11.0 numpy==2.4.6 mpi4py==4.1.2 mpich==5.0.2
cat > "$folder/program.py" <<'PROGRAM'
import sys

import heat
import numpy as np

values = np.array([[1.0, 2.0], [3.0, 6.0], [0.0, 4.0], [9.0, 1.0]])
found = {}
for split in (0, 1):
    x = heat.array(values, split=split)
    found[split] = heat.var(x, axis=1, ddof=0).numpy().tolist()
    if x.comm.rank == 0:
        print(f"axis=1, ddof=0, split={split}: {found[split]}; NumPy {values.var(axis=1).tolist()}")
sys.exit(found != {0: [0.5, 4.5, 8.0, 32.0], 1: [0.25, 2.25, 4.0, 16.0]})
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" -W ignore "$folder/program.py"
