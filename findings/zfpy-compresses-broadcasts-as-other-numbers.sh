#!/usr/bin/env bash
# zfpy 1.0.1.post0: `compress_numpy` of an array that `numpy.broadcast_to` has made compresses other
# numbers, without an error. A copy of the array, and transposed or sliced arrays, come back as they
# were.
#
# Such an array has a stride of 0 along the repeated axis. To zfp a stride of 0 means "not given":
# it takes the one of a contiguous array, and reads what lies behind each number.
#
# The gradient of a sum or mean is such an array, and so are a learning rate or a mask that was made
# to fit a matrix.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), lossless mode:
#   a column 0, 1, 2, 3 of three columns: [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
#   a row 0, 1, 2 of four rows: [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
#   copies of both come back as they were: True
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check zfpy==1.0.1.post0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
import zfpy

numbers = np.arange(12.0)
column = np.broadcast_to(numbers[:4, None], (4, 3))
row = np.broadcast_to(numbers[:3], (4, 3))


def through(x):
    return zfpy.decompress_numpy(zfpy.compress_numpy(x)).astype(int).tolist()


copies = all(through(x.copy()) == x.tolist() for x in (column, row))
seen = (through(column), through(row), copies)
print("a column 0, 1, 2, 3 of three columns:", seen[0])
print("a row 0, 1, 2 of four rows:", seen[1])
print("copies of both come back as they were:", copies)
expected = (
    [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]],
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]],
    True,
)
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
