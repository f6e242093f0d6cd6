#!/usr/bin/env bash
# safetensors 0.8.0 with NumPy: `save` and `save_file` write the memory of an array from its first
# number on, whatever its strides, and the array's shape beside it. A transposed array or one in
# Fortran order comes back with its numbers in other places, every second number of a vector as its
# first half. No error is raised. `safetensors.torch` refuses such tensors; with safetensors 0.6.2
# NumPy's arrays are right.
#
# Transposing is how weights are taken over from one framework to another. The shape is right, so a
# square matrix, or a shard that is loaded by ranks, shows nothing.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), [[0, 1, 2], [3, 4, 5]] and 0, 1 ... 7:
#   0.8.0, Fortran order: [[0, 3, 1], [4, 2, 5]]
#   0.8.0, transposed: [[0, 1], [2, 3], [4, 5]]
#   0.8.0, every second number: [0, 1, 2, 3]
#   0.6.2, Fortran order: [[0, 1, 2], [3, 4, 5]]
#   0.6.2, transposed: [[0, 3], [1, 4], [2, 5]]
#   0.6.2, every second number: [0, 2, 4, 6]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
import safetensors
from safetensors.numpy import load, save

matrix = np.arange(6, dtype=np.int32).reshape(2, 3)
arrays = {
    "Fortran order": np.asfortranarray(matrix),
    "transposed": matrix.T,
    "every second number": np.arange(8, dtype=np.int32)[::2],
}
by_memory = {
    "Fortran order": [[0, 3, 1], [4, 2, 5]],
    "transposed": [[0, 1], [2, 3], [4, 5]],
    "every second number": [0, 1, 2, 3],
}
seen = {name: load(save({"x": array}))["x"].tolist() for name, array in arrays.items()}
for name, numbers in seen.items():
    print(f"{safetensors.__version__}, {name}: {numbers}")
right = {name: array.tolist() for name, array in arrays.items()}
sys.exit(seen != (by_memory if safetensors.__version__ == "0.8.0" else right))
PROGRAM
for version in 0.8.0 0.6.2; do
  python3 -m venv "$folder/env$version"
  "$folder/env$version/bin/pip" install --quiet --disable-pip-version-check \
    "safetensors==$version" numpy==2.4.6
  "$folder/env$version/bin/python" "$folder/program.py"
done
