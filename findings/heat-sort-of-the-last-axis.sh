#!/usr/bin/env bash
# heat 1.8.0 (distributed arrays over mpi4py), 2 ranks: `heat.sort(x)` of a split one-dimensional
# array sorts each rank's part by itself and returns the parts one after the other, without a word.
#
# The default is axis=-1, which is compared with the split axis before it is counted from the front,
# so it never is that axis. `axis=0` sorts the whole array. The same holds for axis=-2 of a matrix
# whose rows are split. On one process every form is right.
#
# Seen (x86-64, Python 3.11, torch 2.11.0):
#   sort(x)          [1.0, 3.0, 5.0, 0.0, 2.0, 4.0]
#   sort(x, axis=0)  [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
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

x = heat.array([5.0, 3.0, 1.0, 4.0, 2.0, 0.0], split=0)
found = {"sort(x)": heat.sort(x)[0].numpy().tolist()}
found["sort(x, axis=0)"] = heat.sort(x, axis=0)[0].numpy().tolist()
if x.comm.rank == 0:
    print(*(f"{call}: {values}" for call, values in found.items()), sep="\n")
parts, whole = [1.0, 3.0, 5.0, 0.0, 2.0, 4.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
sys.exit(list(found.values()) != [parts, whole])
PROGRAM
"$folder/env/bin/mpiexec" -n 2 "$folder/env/bin/python" -W ignore "$folder/program.py"
