#!/usr/bin/env bash
# ml_dtypes 0.6.0: an array of float64 that is converted to float8 has other numbers than the same
# numbers converted one by one: what is a little above the middle of two numbers of float8 becomes
# the lower one, though the upper one is nearer. The array's numbers are rounded to float32 first,
# and then again.
#
# tensorstore 0.1.86 converts to float8 in one step, and to float16 in two, where NumPy needs one:
# the ranks of a job that read the same float64 by different ways get different numbers. All of them
# take bfloat16 in two steps; the nearest there is 1.0078125.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), of the middle of 1 and the next number, plus 2**-40:
#   float8_e4m3fn: array 1.0, one number 1.125, tensorstore 1.125
#   float8_e5m2: array 1.0, one number 1.25, tensorstore 1.25
#   float16: array 1.0009765625, one number 1.0009765625, tensorstore 1.0
#   bfloat16: array 1.0, one number 1.0, tensorstore 1.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  ml_dtypes==0.6.0 tensorstore==0.1.86 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import ml_dtypes
import numpy as np
import tensorstore

BITS = {"float8_e4m3fn": 3, "float8_e5m2": 2, "float16": 10, "bfloat16": 7}
seen = []
for name, bits in BITS.items():
    number = 1 + 2.0 ** -(bits + 1) + 2.0**-40
    kind = getattr(np, name, None) or getattr(ml_dtypes, name)
    x = np.array([number])
    stored = tensorstore.cast(tensorstore.array(x), tensorstore.dtype(kind)).read().result()
    found = [float(y) for y in (x.astype(kind)[0], kind(number), stored[0])]
    seen.append("{}: array {}, one number {}, tensorstore {}".format(name, *found))
print(*seen, sep="\n")
expected = [
    "float8_e4m3fn: array 1.0, one number 1.125, tensorstore 1.125",
    "float8_e5m2: array 1.0, one number 1.25, tensorstore 1.25",
    "float16: array 1.0009765625, one number 1.0009765625, tensorstore 1.0",
    "bfloat16: array 1.0, one number 1.0, tensorstore 1.0",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
