#!/usr/bin/env bash
# NumExpr 2.14.2: the sum of an array without elements is an array without elements instead of 0,
# and the sum along an axis has the shape of what it sums. No error is raised. `max` leaves NaN out,
# and the sum of integers of 32 bits wraps around in 32 bits. `max` and `min` of these, and of all
# smaller integers, end with a SystemError.
#
# NumPy gives 0, the shape without the axis, NaN, and a sum in 64 bits. A rank without rows adds
# nothing to a total: x + sum(nothing) is empty as well, and so is everything computed from it.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6):
#   sum of nothing: [] (0,), NumPy 0.0 ()
#   plus 5: []
#   sum of (3, 0) along axis 1: (3, 0), NumPy (3,)
#   max of nan and 1: 1.0, NumPy nan
#   sum of int32 2147483647 and 1: -2147483648, NumPy 2147483648
#   max of int32: SystemError
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check numexpr==2.14.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys
import warnings

warnings.simplefilter("ignore")

import numexpr as ne
import numpy as np

nothing, rows = np.zeros(0), np.zeros((3, 0))
with_nan = np.array([np.nan, 1.0])
integers = np.array([2**31 - 1, 1], np.int32)
total = ne.evaluate("sum(nothing)")
try:
    largest = str(ne.evaluate("max(integers)"))
except SystemError as error:
    largest = type(error).__name__
seen = [
    f"sum of nothing: {total} {total.shape}, NumPy {nothing.sum()} {nothing.sum().shape}",
    f"plus 5: {5 + total}",
    f"sum of (3, 0) along axis 1: {ne.evaluate('sum(rows, axis=1)').shape}, "
    f"NumPy {rows.sum(axis=1).shape}",
    f"max of nan and 1: {ne.evaluate('max(with_nan)')}, NumPy {with_nan.max()}",
    f"sum of int32 2147483647 and 1: {ne.evaluate('sum(integers)')}, NumPy {integers.sum()}",
    f"max of int32: {largest}",
]
print(*seen, sep="\n")
expected = [
    "sum of nothing: [] (0,), NumPy 0.0 ()",
    "plus 5: []",
    "sum of (3, 0) along axis 1: (3, 0), NumPy (3,)",
    "max of nan and 1: 1.0, NumPy nan",
    "sum of int32 2147483647 and 1: -2147483648, NumPy 2147483648",
    "max of int32: SystemError",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
