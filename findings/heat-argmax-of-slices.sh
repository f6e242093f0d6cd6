#!/usr/bin/env bash
# heat 1.8.0, 2 ranks: `argmax` and `argmin` of a slice of a split array give wrong places, without a
# word: of x[4:5], which has one element, both are 1; the largest element of x[4:7] is said to be at
# place 4 of three.
#
# A slice leaves its elements on the ranks that have them, so the parts are not what heat makes of an
# array of that length; places are counted as if they were. `max`, `min` and `sum` of the same slices
# are right, so a program that takes the best row after it has cut off the first ones takes another.
#
# Seen (x86-64, Python 3.11, torch 2.11.0), x = [5, -3, 2, 9, 0, 1, 4]:
#   x[4:5] = [0]: argmax 1, argmin 1; x[4:7] = [0, 1, 4]: argmax 4, argmin 2; x[2:7]: argmin 3 (is 2)
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

x = heat.array([5, -3, 2, 9, 0, 1, 4], split=0)
seen = {}
for begin, end in ((4, 5), (4, 7), (2, 7)):
    part = x[begin:end]
    whole = part.numpy()
    ours = [int(f(part).numpy().ravel()[0]) for f in (heat.argmax, heat.argmin)]
    seen[begin, end] = (*ours, int(whole.argmax()), int(whole.argmin()))
    if x.comm.rank == 0:
        print(f"x[{begin}:{end}] = {whole.tolist()}: argmax, argmin {ours}, NumPy {seen[begin, end][2:]}")
sys.exit(seen != {(4, 5): (1, 1, 0, 0), (4, 7): (4, 2, 2, 0), (2, 7): (1, 3, 1, 2)})
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" -W ignore "$folder/program.py"
