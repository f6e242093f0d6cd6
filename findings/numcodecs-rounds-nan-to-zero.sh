#!/usr/bin/env bash
# numcodecs 0.16.6: `BitRound` turns some NaN into zero, without an error: the one whose bits are
# all set becomes -0, with the sign bit too it becomes +0. NumPy's own NaN stays one.
#
# The codec adds half of the last kept digit to the bits, taken as an integer, and that of such a
# NaN overflows into the sign. It is the NaN of CUDA 13's headers in float32 (0x7fffffff), float16
# and bfloat16. So an array that was computed on a GPU and is written with this codec, by itself or
# as a filter of zarr, can show zeros where the computation had failed.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), keepbits=5:
#   float16: 7e00 nan, 7fff -0.0, ffff 0.0
#   float32: 7fc00000 nan, 7fffffff -0.0, ffffffff 0.0
#   float64: 7ff8000000000000 nan, 7fffffffffffffff -0.0, ffffffffffffffff 0.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check numcodecs==0.16.6 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
from numcodecs import BitRound

seen = []
for bits, usual in ((16, 0x7E00), (32, 0x7FC00000), (64, 0x7FF8000000000000)):
    patterns = np.array([usual, 2 ** (bits - 1) - 1, 2**bits - 1], f"u{bits // 8}")
    numbers = patterns.view(f"f{bits // 8}")
    assert np.isnan(numbers).all()
    codec = BitRound(keepbits=5)
    decoded = codec.decode(codec.encode(numbers)).view(numbers.dtype)
    pairs = (f"{pattern:x} {number}" for pattern, number in zip(patterns, decoded, strict=True))
    seen.append(f"{numbers.dtype}: {', '.join(pairs)}")
print(*seen, sep="\n")
expected = [
    "float16: 7e00 nan, 7fff -0.0, ffff 0.0",
    "float32: 7fc00000 nan, 7fffffff -0.0, ffffffff 0.0",
    "float64: 7ff8000000000000 nan, 7fffffffffffffff -0.0, ffffffffffffffff 0.0",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
