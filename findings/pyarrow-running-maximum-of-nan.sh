#!/usr/bin/env bash
# pyarrow 26.0.1: `cumulative_max` begins with -inf if the first number is NaN, and `cumulative_min`
# with inf: numbers that are not there. Behind a number a NaN is left out. No error is raised. `max`
# of the same numbers leaves NaN out as well, and is NaN of nothing but NaN.
#
# NumPy's running maximum is NaN from the first NaN on. `cumulative_sum` and `cumulative_mean` of
# the same numbers are NaN, too. So a series of losses that begins with NaN shows an infinite best
# value, until a number comes.
#
# Seen (x86-64, Python 3.11):
#   [nan, 1, 2]: cumulative_max [-inf, 1.0, 2.0], cumulative_min [inf, 1.0, 1.0]
#   [1, nan, 2]: cumulative_max [1.0, 1.0, 2.0], cumulative_min [1.0, 1.0, 1.0]
#   [nan, nan]: cumulative_max [-inf, -inf], cumulative_min [inf, inf]
#   [nan, nan]: max nan, NumPy's running maximum [nan, nan]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

nan = float("nan")
seen = []
for name, numbers in (
    ("[nan, 1, 2]", [nan, 1.0, 2.0]),
    ("[1, nan, 2]", [1.0, nan, 2.0]),
    ("[nan, nan]", [nan, nan]),
):
    array = pa.array(numbers)
    largest = pc.cumulative_max(array).to_pylist()
    smallest = pc.cumulative_min(array).to_pylist()
    seen.append(f"{name}: cumulative_max {largest}, cumulative_min {smallest}")
running = np.maximum.accumulate(array.to_numpy()).tolist()
seen.append(f"[nan, nan]: max {pc.max(array)}, NumPy's running maximum {running}")
print(*seen, sep="\n")
expected = [
    "[nan, 1, 2]: cumulative_max [-inf, 1.0, 2.0], cumulative_min [inf, 1.0, 1.0]",
    "[1, nan, 2]: cumulative_max [1.0, 1.0, 2.0], cumulative_min [1.0, 1.0, 1.0]",
    "[nan, nan]: cumulative_max [-inf, -inf], cumulative_min [inf, inf]",
    "[nan, nan]: max nan, NumPy's running maximum [nan, nan]",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
