#!/usr/bin/env bash
# heat 1.8.0, 2 ranks: `mean`, `var` and `std` of a split array with a NaN are numbers on all ranks: the
# part of a rank that has a NaN counts as zeros. `max` and `min` are NaN on that rank and the numbers of
# the other part on the other one, so that ranks go different ways after a comparison.
#
# `sum` of the same array is NaN, and with split=None, or on one process, all of them are. So a mean
# of losses hides that one of them has become NaN.
#
# Seen (x86-64, Python 3.11, torch 2.11.0), ranks 0 and 1:
#   [nan, 1, 2, 3]: sum nan nan, max 3.0 nan, min 2.0 nan, mean 1.25 1.25, var 1.6875 1.6875
#   [1, 2, 3, nan]: sum nan nan, max nan 2.0, min nan 1.0, mean 0.75 0.75, var 0.6875 0.6875
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
from mpi4py import MPI

NAN = float("nan")
seen = []
for values in ([NAN, 1, 2, 3], [1, 2, 3, NAN]):
    x = heat.array(np.array(values, "float32"), split=0)
    for name in ("sum", "max", "min", "mean", "var"):
        seen.append(MPI.COMM_WORLD.allgather(float(getattr(heat, name)(x))))
        if x.comm.rank == 0:
            print(f"{values}: {name} {seen[-1]}")
first = [[NAN] * 2, [3, NAN], [2, NAN], [1.25] * 2, [1.6875] * 2]
last = [[NAN] * 2, [NAN, 2], [NAN, 1], [0.75] * 2, [0.6875] * 2]
sys.exit(not np.array_equal(seen, first + last, equal_nan=True))
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" -W ignore "$folder/program.py"
