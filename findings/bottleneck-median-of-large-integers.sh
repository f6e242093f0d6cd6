#!/usr/bin/env bash
# Bottleneck 1.6.0: the median of an even number of large integers is wrong: of four times 2**30 as
# int32 it is -2**30, of four times 2**62 as int64 -2**62. No error is raised. The mean of the same
# numbers is right, and so are the median of three of them and NumPy's.
#
# It adds the two middle numbers in their type, which wraps around, and halves the sum. So the
# median of times in nanoseconds of 32 bits, or of hashes, is a negative number.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), four equal numbers:
#   int32 2**30: median -1073741824.0, nanmedian -1073741824.0, of three 1073741824.0
#   int32 2**30: nanmean 1073741824.0, NumPy's median 1073741824.0
#   int64 2**62: median -4.611686018427388e+18, nanmedian -4.611686018427388e+18, of three the right
#     number
#   int64 2**62: nanmean 4.611686018427388e+18, NumPy's median 4.611686018427388e+18
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check bottleneck==1.6.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import bottleneck as bn
import numpy as np

changed = False
for kind, power in (("int32", 30), ("int64", 62)):
    x = np.full(4, 2**power, kind)
    wrong = bn.median(x), bn.nanmedian(x)
    right = bn.median(x[:3]), bn.nanmean(x), np.median(x)
    name = f"{kind} 2**{power}"
    print(f"{name}: median {wrong[0]}, nanmedian {wrong[1]}, of three {right[0]}")
    print(f"{name}: nanmean {right[1]}, NumPy's median {right[2]}")
    changed |= wrong != (-(2.0**power),) * 2 or right != (2.0**power,) * 3
sys.exit(changed)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
