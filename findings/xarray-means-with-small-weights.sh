#!/usr/bin/env bash
# xarray 2026.9.0: a weighted mean of equal numbers is another number if the weights are small
# integers: with three weights of 100 as uint8 the mean of 100, 100 and 100 is 681.8. If the numbers
# are uint8 too it is 1.09. No error is raised. The same weights as int64 or float32 give 100.
#
# Products and sums are computed in the common type of numbers and weights, and the sum of weights
# in that of the weights, which wraps around: it is 44 instead of 300. `sum` of the weights
# themselves is right.
#
# Counts of samples per rank, and masks, are kept in small types, and are the weights of a mean.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), three numbers of 100 with three weights of 100:
#   float64 by uint8: mean 681.8181818181819, sum of weights 44.0
#   int64 by uint8: mean 681.8181818181819, sum of weights 44.0
#   uint8 by uint8: mean 1.0909091234207153, sum of weights 44.0
#   uint8 by int64: mean 100.0, sum of weights 300.0
#   the weights' own sum: 300
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check xarray==2026.9.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
import xarray as xr


def hundreds(kind):
    return xr.DataArray(np.full(3, 100, kind), dims="rank")


TYPES = [("float64", "uint8"), ("int64", "uint8"), ("uint8", "uint8"), ("uint8", "int64")]
seen = []
for kind, weight in TYPES:
    weighted = hundreds(kind).weighted(hundreds(weight))
    mean, weights = weighted.mean().item(), weighted.sum_of_weights().item()
    seen.append(f"{kind} by {weight}: mean {mean}, sum of weights {weights}")
seen.append(f"the weights' own sum: {hundreds('uint8').sum().item()}")
print(*seen, sep="\n")
expected = [
    "float64 by uint8: mean 681.8181818181819, sum of weights 44.0",
    "int64 by uint8: mean 681.8181818181819, sum of weights 44.0",
    "uint8 by uint8: mean 1.0909091234207153, sum of weights 44.0",
    "uint8 by int64: mean 100.0, sum of weights 300.0",
    "the weights' own sum: 300",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
