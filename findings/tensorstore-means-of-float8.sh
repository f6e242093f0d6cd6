#!/usr/bin/env bash
# tensorstore 0.1.86: `downsample` of numbers of 8 or 4 bits with a point returns 0 as every mean,
# without an error, and NaN as every maximum and minimum of the types without infinity
# (float8_e4m3fn and its kin). The median and the mode of the same numbers are right, and so are all
# of them of bfloat16 and float16.
#
# The largest and smallest values of a block begin with infinity, which converts to NaN where the
# type has none.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), of 2, 2 and of 1, 4:
#   bfloat16: mean [2.0, 2.5], max [2.0, 4.0], min [2.0, 1.0], median [2.0, 1.0]
#   float8_e4m3fn: mean [0.0, 0.0], max [nan, nan], min [nan, nan], median [2.0, 1.0]
#   float8_e5m2: mean [0.0, 0.0], max [2.0, 4.0], min [2.0, 1.0], median [2.0, 1.0]
#   float4_e2m1fn: mean [0.0, 0.0], max [2.0, 4.0], min [2.0, 1.0], median [2.0, 1.0]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  tensorstore==0.1.86 ml_dtypes==0.6.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import ml_dtypes
import numpy as np
import tensorstore

WAYS = ("mean", "max", "min", "median")


def blocks(kind, way):
    x = tensorstore.array(np.array([2, 2, 1, 4], kind))
    return tensorstore.downsample(x, [2], way).read().result().astype(float).tolist()


seen = []
for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"):
    found = (f"{way} {blocks(getattr(ml_dtypes, name), way)}" for way in WAYS)
    seen.append(f"{name}: {', '.join(found)}")
print(*seen, sep="\n")
right = "max [2.0, 4.0], min [2.0, 1.0], median [2.0, 1.0]"
expected = [
    f"bfloat16: mean [2.0, 2.5], {right}",
    "float8_e4m3fn: mean [0.0, 0.0], max [nan, nan], min [nan, nan], median [2.0, 1.0]",
    f"float8_e5m2: mean [0.0, 0.0], {right}",
    f"float4_e2m1fn: mean [0.0, 0.0], {right}",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
