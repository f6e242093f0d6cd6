#!/usr/bin/env bash
# heat 1.8.0, 2 ranks: `x[mask]` and `heat.nonzero(x)` of a matrix whose columns are split go through
# the parts of the ranks one after the other, not through the rows. The same call on the same values
# has its elements in another order than with split rows, one process, or NumPy.
#
# A mask is often taken from one array and applied to two, such as values and weights. If these are
# split in different ways, elements are paired wrongly, without an error.
#
# Seen (x86-64, Python 3.11, torch 2.11.0), x = [[0, 1, 2], [3, 4, 5]], x[x > 0]:
#   rows split:     [1, 2, 3, 4, 5]
#   columns split:  [1, 3, 4, 2, 5]
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

values = np.arange(6).reshape(2, 3)
found = {}
for split in (0, 1):
    x = heat.array(values, split=split)
    found[split] = x[x > 0].numpy().tolist()
    if x.comm.rank == 0:
        print(f"split={split}: {found[split]}; NumPy {values[values > 0].tolist()}")
sys.exit(found != {0: [1, 2, 3, 4, 5], 1: [1, 3, 4, 2, 5]})
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" -W ignore "$folder/program.py"
