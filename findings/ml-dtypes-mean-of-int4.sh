#!/usr/bin/env bash
# ml_dtypes 0.6.0: the mean and the median of numbers of int4 or uint4 can lie outside the range of
# these numbers: both are -1 of four sevens. The variance of numbers that differ can be 0, and the
# square of 15 in uint4 is -31.
#
# NumPy adds its own small integers in 64 bits, and computes means in float64. Numbers of a type that
# it does not know as integers it adds in that type, which wraps around, and divides there. Functions
# that these types lack, such as the square, are done in int8, which has no 225. All is silent.
#
# Who looks at weights or gradients of 4 bits by their mean and spread finds them dead.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6):
#   int4 [7, 7, 7, 7]: mean -1.0, median -1.0, variance 0.0
#   int4 [7, 7, 7, 7, -8]: mean 0.0, median 7.0, variance 0.0
#   uint4 [15, 15, 15, 15]: mean 3.0, median 7.0, variance 0.0
#   int8 [7, 7, 7, 7, -8]: mean 4.0, median 7.0, variance 36.0
#   uint4 15 squared: -31
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check ml_dtypes==0.6.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import ml_dtypes
import numpy as np

INPUTS = [
    (ml_dtypes.int4, [7, 7, 7, 7]),
    (ml_dtypes.int4, [7, 7, 7, 7, -8]),
    (ml_dtypes.uint4, [15, 15, 15, 15]),
    (np.int8, [7, 7, 7, 7, -8]),
]
seen = []
for kind, numbers in INPUTS:
    x = np.array(numbers, kind)
    seen.append((float(np.mean(x)), float(np.median(x)), float(np.var(x))))
    print(f"{x.dtype.name} {numbers}:", "mean {}, median {}, variance {}".format(*seen[-1]))
square = int(np.square(np.array([15], ml_dtypes.uint4))[0])
print("uint4 15 squared:", square)
sys.exit(seen != [(-1, -1, 0), (0, 7, 0), (3, 7, 0), (4, 7, 36)] or square != -31)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
