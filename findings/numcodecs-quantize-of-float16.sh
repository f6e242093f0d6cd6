#!/usr/bin/env bash
# numcodecs 0.16.6: `Quantize` of float16 makes infinity of ordinary numbers: of 4096 with one digit
# after the point, of 64 with three. The same codec of float32 returns them as they were.
#
# It multiplies the array by a power of two of its digits, rounds and divides, all in float16, whose
# largest number is 65504. NumPy warns of an overflow; the codec raises nothing. So arrays of
# gradients or activations in float16 that are written this way have a range of a few numbers.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), of 1, 64, 4096 and 32768:
#   float16, 1 digit: [1.0, 64.0, inf, inf]
#   float16, 2 digits: [1.0, 64.0, inf, inf]
#   float16, 3 digits: [1.0, inf, inf, inf]
#   float32, 1 digit: [1.0, 64.0, 4096.0, 32768.0]
#   float32, 2 digits: [1.0, 64.0, 4096.0, 32768.0]
#   float32, 3 digits: [1.0, 64.0, 4096.0, 32768.0]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check numcodecs==0.16.6 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys
import warnings

import numpy as np
from numcodecs import Quantize

warnings.simplefilter("ignore")  # of the overflow
inf = float("inf")
numbers = [1.0, 64.0, 4096.0, 32768.0]
expected = {
    ("float16", 1): [1.0, 64.0, inf, inf],
    ("float16", 2): [1.0, 64.0, inf, inf],
    ("float16", 3): [1.0, inf, inf, inf],
    ("float32", 1): numbers,
    ("float32", 2): numbers,
    ("float32", 3): numbers,
}
seen = {}
for dtype, digits in expected:
    codec = Quantize(digits=digits, dtype=dtype)
    decoded = codec.decode(codec.encode(np.array(numbers, dtype))).tolist()
    print(f"{dtype}, {digits} digit{'s' * (digits > 1)}: {decoded}")
    seen[dtype, digits] = decoded
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
