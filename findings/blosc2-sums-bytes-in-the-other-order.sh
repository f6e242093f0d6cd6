#!/usr/bin/env bash
# blosc2 4.14.1: sums, means, comparisons and functions of an array whose bytes are in the other
# order than the machine's (">f8") are those of other numbers, without an error: the sum of 0, 1, 2
# and 3 is 3.1e-319. The array itself comes back right.
#
# Arrays read from netCDF, FITS or IDX files and from network formats have this order on all usual
# machines.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), of 0, 1, 2, 3:
#   >f8: back [0.0, 1.0, 2.0, 3.0], sum 3.14616e-319, above 1: 0
#   >i4: back [0, 1, 2, 3], sum 100663296, above 1: 3
#   <f8: back [0.0, 1.0, 2.0, 3.0], sum 6.0, above 1: 2
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check blosc2==4.14.1 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import blosc2
import numpy as np

seen = []
for dtype in (">f8", ">i4", "<f8"):
    x = blosc2.asarray(np.arange(4, dtype=dtype))
    seen.append(
        f"{dtype}: back {x[:].tolist()}, sum {x.sum()}, "
        f"above 1: {np.count_nonzero((x > 1).compute()[:])}"
    )
print(*seen, sep="\n")
expected = [
    ">f8: back [0.0, 1.0, 2.0, 3.0], sum 3.14616e-319, above 1: 0",
    ">i4: back [0, 1, 2, 3], sum 100663296, above 1: 3",
    "<f8: back [0.0, 1.0, 2.0, 3.0], sum 6.0, above 1: 2",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
