#!/usr/bin/env bash
# awkward 2.14.0: `ak.max` and `ak.min` of everything are NaN if a number is; those along an axis
# leave NaN out, and of a list with nothing but NaN they are -inf and inf, numbers that are not
# there. `ak.argmax` points to the NaN that `ak.max` along the same axis has left out. No error is
# raised.
#
# NumPy's `max` along an axis is NaN in all these rows, its `nanmax` NaN in the last one, with a
# warning. So a maximum per event, whose largest is taken then, hides what the largest of everything
# shows.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), the lists [nan, 1], [1, nan] and [nan]:
#   max of everything nan, along the axis [1.0, 1.0, -inf]
#   min of everything nan, along the axis [1.0, 1.0, inf]
#   argmax along the axis [0, 0, 0], there [nan, 1.0, nan]
#   NumPy's max of the first two along the axis [nan, nan]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check awkward==2.14.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import awkward as ak
import numpy as np

nan = float("nan")
lists = [[nan, 1.0], [1.0, nan], [nan]]
array = ak.Array(lists)
places = ak.argmax(array, axis=1).to_list()
there = [numbers[place] for numbers, place in zip(lists, places, strict=True)]
seen = [
    f"max of everything {ak.max(array)}, along the axis {ak.max(array, axis=1).to_list()}",
    f"min of everything {ak.min(array)}, along the axis {ak.min(array, axis=1).to_list()}",
    f"argmax along the axis {places}, there {there}",
    f"NumPy's max of the first two along the axis {np.max(lists[:2], axis=1).tolist()}",
]
print(*seen, sep="\n")
expected = [
    "max of everything nan, along the axis [1.0, 1.0, -inf]",
    "min of everything nan, along the axis [1.0, 1.0, inf]",
    "argmax along the axis [0, 0, 0], there [nan, 1.0, nan]",
    "NumPy's max of the first two along the axis [nan, nan]",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
