#!/usr/bin/env bash
# blosc2 4.14.1: the filter TRUNC_PREC, which cuts digits of floating-point numbers, takes a number
# of complex64 for one of float64, by its size: the real part becomes 0 or loses digits, and the
# imaginary part keeps more than it should. Numbers of the other byte order (">f4") become other
# numbers. No error is raised; complex128 and float16 are refused.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), numbers cut to 10 bits after the first:
#   float32 1.7 -> 1.69921875
#   complex64 1.7+3.3j -> 3.2998046875j
#   >f4 1.7 -> 1.7687517120548493e-38
#   complex128 1.7+3.3j -> RuntimeError
# Cut to 23 bits, as many as float32 has:
#   float32 1.7 -> 1.7000000476837158
#   complex64 1.7+3.3j -> 1.0842021724855044e-19+3.299999952316284j
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


def line(dtype, number, bits):
    settings = {
        "filters": [blosc2.Filter.TRUNC_PREC, blosc2.Filter.SHUFFLE],
        "filters_meta": [bits, 0],
    }
    x = np.full(4000, number, dtype)
    try:
        kept = blosc2.asarray(x, cparams=settings)[0].item()
    except RuntimeError as error:
        kept = type(error).__name__
    return f"{dtype} {str(number).strip('()')} -> {str(kept).strip('()')}"


seen = [
    line("float32", 1.7, 10),
    line("complex64", 1.7 + 3.3j, 10),
    line(">f4", 1.7, 10),
    line("complex128", 1.7 + 3.3j, 10),
    line("float32", 1.7, 23),
    line("complex64", 1.7 + 3.3j, 23),
]
print(*seen, sep="\n")
expected = [
    "float32 1.7 -> 1.69921875",
    "complex64 1.7+3.3j -> 3.2998046875j",
    ">f4 1.7 -> 1.7687517120548493e-38",
    "complex128 1.7+3.3j -> RuntimeError",
    "float32 1.7 -> 1.7000000476837158",
    "complex64 1.7+3.3j -> 1.0842021724855044e-19+3.299999952316284j",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
