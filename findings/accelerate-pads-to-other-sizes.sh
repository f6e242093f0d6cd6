#!/usr/bin/env bash
# accelerate 1.15.0 (PyTorch 2.13.0): `pad_input_tensors`, which its documentation says makes a
# batch fit a number of processes, pads to sizes that they cannot share evenly: two rows for two
# processes become three, six become seven, seven become nine. No error is raised.
#
# By its documentation the new rows are the last row repeated; they are zeros.
#
# Seen (x86-64, Python 3.11), sizes for batches of 1, 2 ... 8 rows, new rows:
#   2 processes: sizes 2, 3, 4, 4, 6, 7, 9, 10, new rows {0}
#   3 processes: sizes 3, 3, 5, 6, 7, 7, 8, 9, new rows {0}
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  accelerate==1.15.0 torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import torch
from accelerate.utils import pad_input_tensors

seen = []
for processes in (2, 3):
    sizes, new = [], set()
    for rows in range(1, 9):
        padded = pad_input_tensors(torch.arange(1, rows + 1), rows, processes)
        sizes.append(len(padded))
        new |= set(padded[rows:].tolist())
    seen.append(f"{processes} processes: sizes {', '.join(map(str, sizes))}, new rows {new}")
print(*seen, sep="\n")
documented = "last input repeated" in pad_input_tensors.__doc__
expected = [
    "2 processes: sizes 2, 3, 4, 4, 6, 7, 9, 10, new rows {0}",
    "3 processes: sizes 3, 3, 5, 6, 7, 7, 8, 9, new rows {0}",
]
sys.exit(not documented or seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
