#!/usr/bin/env bash
# ml_dtypes 0.6.0: an array of bfloat16 or float8 that contains NaN is not sorted by `numpy.sort`, and
# its median is a number. Arrays of float16 with the same values are sorted, NaN at the end, and
# their median is NaN.
#
# NumPy needs an order of a type in which NaN is the largest; the one of these types finds NaN equal
# to every number, so that a sort stops at it. What is to the left of NaN is not compared with what
# is to the right of it. `argsort`, `partition`, `percentile` and `unique` inherit this.
#
# A median over the ranks' gradients, taken to be robust, hides that one of them has NaN; "the
# largest k" misses larger ones.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), [3, nan, 1, 2, 0.5]:
#   bfloat16: sorted [3.0, nan, 0.5, 1.0, 2.0], median 0.5
#   float8_e4m3fn: sorted [3.0, nan, 0.5, 1.0, 2.0], median 0.5
#   float8_e5m2: sorted [3.0, nan, 0.5, 1.0, 2.0], median 0.5
#   float16: sorted [0.5, 1.0, 2.0, 3.0, nan], median nan
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

seen = {}
for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float16):
    x = np.array([3, np.nan, 1, 2, 0.5], kind)
    name = np.dtype(kind).name
    seen[name] = f"sorted {np.sort(x).tolist()}, median {float(np.median(x))}"
    print(f"{name}: {seen[name]}")
right = "sorted [0.5, 1.0, 2.0, 3.0, nan], median nan"
wrong = "sorted [3.0, nan, 0.5, 1.0, 2.0], median 0.5"
sys.exit(seen != {name: right if name == "float16" else wrong for name in seen})
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
