#!/usr/bin/env bash
# blosc2 4.14.1: `argmax` and `argmin` of an array with NaN give a place that holds neither NaN nor
# the largest or smallest number. In one chunk the answer is always 0, wherever the NaN is; in
# several chunks, one with NaN is left out as a whole, with the largest number if it is there.
# `max` and `min` of the same arrays give NaN, as NumPy does, and NumPy's `argmax` the place of the
# NaN. No error is raised, and blosc2's documents say "the indices of the maximum values".
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), each with blosc2's answer and then NumPy's:
#   argmax of 3 1 nan 9 2: 0 2
#   argmin of 3 1 nan 9 2: 0 2
#   argmax of 3 1 4 9 2: 3 3
#   max of 3 1 nan 9 2: nan nan
#   argmax of 0, 1, ..., 3999 with NaN at 3500, in chunks of 1000: 2999 3500
#   argmin of 3999, 3998, ..., 0 with NaN at 3500, in chunks of 1000: 2999 3500
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


def line(name, x, text, **settings):
    packed = blosc2.asarray(x, **settings)
    found = np.asarray(getattr(blosc2, name)(packed))
    return f"{name} of {text}: {found.item():g} {getattr(np, name)(x):g}"


few = np.array([3, 1, np.nan, 9, 2])
numbers = np.array([3.0, 1, 4, 9, 2])
rising = np.arange(4000.0)
falling = rising[::-1].copy()
rising[3500] = falling[3500] = np.nan
parts = {"chunks": (1000,), "blocks": (1000,)}
seen = [
    line("argmax", few, "3 1 nan 9 2"),
    line("argmin", few, "3 1 nan 9 2"),
    line("argmax", numbers, "3 1 4 9 2"),
    line("max", few, "3 1 nan 9 2"),
    line("argmax", rising, "0, 1, ..., 3999 with NaN at 3500, in chunks of 1000", **parts),
    line("argmin", falling, "3999, 3998, ..., 0 with NaN at 3500, in chunks of 1000", **parts),
]
print(*seen, sep="\n")
expected = [
    "argmax of 3 1 nan 9 2: 0 2",
    "argmin of 3 1 nan 9 2: 0 2",
    "argmax of 3 1 4 9 2: 3 3",
    "max of 3 1 nan 9 2: nan nan",
    "argmax of 0, 1, ..., 3999 with NaN at 3500, in chunks of 1000: 2999 3500",
    "argmin of 3999, 3998, ..., 0 with NaN at 3500, in chunks of 1000: 2999 3500",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
