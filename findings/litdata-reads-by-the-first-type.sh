#!/usr/bin/env bash
# litdata 0.2.76: `optimize` writes arrays and tensors of one dimension without their type and
# shape, and all are read as if they had the type of the first: an int32 after a float32 comes back
# as other numbers, a float64 after an int32 as twice as many numbers. Of a matrix after a vector
# the shape is lost, and True before 5 makes that True. No error is raised.
#
# Samples of several sources often differ so: labels of one file are int32, of another int64. An
# integer before a floating-point number raises an error.
#
# Seen (Python 3.11, PyTorch 2.13.0, NumPy 2.4.6), what is read of the second sample:
#   float32 [0, 1, 2], then int32 [0, 1, 2] ->
#     float32 [0.0, 1.401298464324817e-45, 2.802596928649634e-45]
#   int32 [0, 1, 2], then float64 [0, 1, 2] -> int32 [0, 0, 0, 1072693248, 0, 1073741824]
#   float64 [0, 1, 2], then float64 [[1, 2], [3, 4]] -> float64 [1.0, 2.0, 3.0, 4.0]
#   float64 [[1, 2], [3, 4]], then float64 [0, 1, 2] -> float64 [0.0, 1.0, 2.0]
#   True, then 5 -> True
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 litdata==0.2.76 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys
import tempfile

import numpy as np
from litdata import StreamingDataset, optimize

VECTOR, MATRIX = [0, 1, 2], [[1, 2], [3, 4]]
PAIRS = [
    (("float32", VECTOR), ("int32", VECTOR)),
    (("int32", VECTOR), ("float64", VECTOR)),
    (("float64", VECTOR), ("float64", MATRIX)),
    (("float64", MATRIX), ("float64", VECTOR)),
    (True, 5),
]


def as_sample(value):
    return np.array(value[1], value[0]) if isinstance(value, tuple) else value


def text(value):
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.tolist()}"
    return "{} {}".format(*value) if isinstance(value, tuple) else str(value)


def second_read(pair):
    with tempfile.TemporaryDirectory() as folder:
        optimize(as_sample, list(pair), folder, num_workers=1, chunk_bytes="1MB", verbose=False)
        return StreamingDataset(folder)[1]


if __name__ == "__main__":
    seen = [f"{text(a)}, then {text(b)} -> {text(second_read((a, b)))}" for a, b in PAIRS]
    print(*seen, sep="\n")
    expected = [
        "float32 [0, 1, 2], then int32 [0, 1, 2] -> "
        "float32 [0.0, 1.401298464324817e-45, 2.802596928649634e-45]",
        "int32 [0, 1, 2], then float64 [0, 1, 2] -> int32 [0, 0, 0, 1072693248, 0, 1073741824]",
        "float64 [0, 1, 2], then float64 [[1, 2], [3, 4]] -> float64 [1.0, 2.0, 3.0, 4.0]",
        "float64 [[1, 2], [3, 4]], then float64 [0, 1, 2] -> float64 [0.0, 1.0, 2.0]",
        "True, then 5 -> True",
    ]
    sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
