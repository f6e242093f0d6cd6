#!/usr/bin/env bash
# SciPy 1.17.1: `maximum` and `minimum` of two sparse matrices depend on their order where one has a
# NaN: it stays if it is in the left one, and is lost if it is in the right one. `argmax` of a row
# with NaN points to a zero, also where a larger number stands beside it, while `max` of the same
# row is NaN. No error is raised.
#
# NumPy's `maximum` is NaN both times, and its `argmax` points to the NaN. So a maximum of several
# ranks' sparse gradients is NaN or a number by the order in which they are taken.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), a = [nan, 1, 0], b = [0, 2, 0]:
#   a.maximum(b) [nan, 2.0, 0.0], b.maximum(a) [0.0, 2.0, 0.0]
#   a.minimum(b) [nan, 1.0, 0.0], b.minimum(a) [0.0, 1.0, 0.0]
#   a: max nan, argmax 2, there 0.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check scipy==1.17.1 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys
import warnings

warnings.simplefilter("ignore")  # NumPy says that a NaN was compared

import numpy as np
from scipy.sparse import csr_array

rows = np.array([[np.nan, 1, 0]]), np.array([[0.0, 2, 0]])
a, b = map(csr_array, rows)
pairs = {"a": a, "b": b}
seen = []
for name in ("maximum", "minimum"):
    results = (
        f"{left}.{name}({right}) {getattr(pairs[left], name)(pairs[right]).toarray()[0].tolist()}"
        for left, right in ("ab", "ba")
    )
    seen.append(", ".join(results))
place = int(a.argmax())
seen.append(f"a: max {a.max()}, argmax {place}, there {rows[0][0, place]}")
print(*seen, sep="\n")
expected = [
    "a.maximum(b) [nan, 2.0, 0.0], b.maximum(a) [0.0, 2.0, 0.0]",
    "a.minimum(b) [nan, 1.0, 0.0], b.minimum(a) [0.0, 1.0, 0.0]",
    "a: max nan, argmax 2, there 0.0",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
