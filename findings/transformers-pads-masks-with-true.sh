#!/usr/bin/env bash
# transformers 5.24.0 (PyTorch 2.13.0): `nested_concat`, by which Trainer joins the predictions of
# batches, pads a mask with True and bytes with 156, where batches differ in length, and cuts
# floating-point numbers to integers if the first batch has integers. No error is raised. Batches of
# equal length keep their values.
#
# What is padded shall be ignored: its value is -100, which becomes True or 156 in these types. A
# metric that counts a mask of valid tokens counts the padding. NumPy arrays of bytes raise
# OverflowError instead.
#
# Seen (Python 3.11, CPU build), batches of one row, of length 2 and 3 (and of 2 and 2):
#   bool [1, 0] and bool [1, 0, 1]: bool [[True, False, True], [True, False, True]]
#   uint8 [1, 0] and uint8 [1, 0, 1]: uint8 [[1, 0, 156], [1, 0, 1]]
#   int32 [1, 2] and float32 [0.5, 1.5, 2.5]: int32 [[1, 2, -100], [0, 1, 2]]
#   int32 [1, 2] and float32 [0.5, 1.5]: float32 [[1.0, 2.0], [0.5, 1.5]]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import torch
from transformers.trainer_pt_utils import nested_concat

PAIRS = [
    (("bool", [1, 0]), ("bool", [1, 0, 1])),
    (("uint8", [1, 0]), ("uint8", [1, 0, 1])),
    (("int32", [1, 2]), ("float32", [0.5, 1.5, 2.5])),
    (("int32", [1, 2]), ("float32", [0.5, 1.5])),
]
seen = []
for pair in PAIRS:
    batches = (torch.tensor([row], dtype=getattr(torch, name)) for name, row in pair)
    joined = nested_concat(*batches)
    batch_names = " and ".join("{} {}".format(*batch) for batch in pair)
    seen.append(f"{batch_names}: {str(joined.dtype).removeprefix('torch.')} {joined.tolist()}")
print(*seen, sep="\n")
expected = [
    "bool [1, 0] and bool [1, 0, 1]: bool [[True, False, True], [True, False, True]]",
    "uint8 [1, 0] and uint8 [1, 0, 1]: uint8 [[1, 0, 156], [1, 0, 1]]",
    "int32 [1, 2] and float32 [0.5, 1.5, 2.5]: int32 [[1, 2, -100], [0, 1, 2]]",
    "int32 [1, 2] and float32 [0.5, 1.5]: float32 [[1.0, 2.0], [0.5, 1.5]]",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
