#!/usr/bin/env bash
# PyTorch 2.13.0: DLPack hands on the numbers of a negated view without their sign.
#
# `x.conj().imag` is a view whose "negative" bit says that its numbers have to be negated when they
# are read. `__dlpack__` refuses tensors with the conjugate bit, but does not look at this one: NumPy
# gets the memory as it is, without an error. `tensor.numpy()` refuses both.
#
# Seen (Python 3.11, CPU build): the tensor is [-2.], NumPy's array [2.]; numpy() raises RuntimeError
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
import torch

view = torch.tensor([1 + 2j]).conj().imag
array = np.from_dlpack(view)
try:
    refused = str(view.numpy())
except RuntimeError as error:
    refused = type(error).__name__
print("tensor", view.tolist(), "by DLPack", array.tolist(), "by numpy()", refused)
sys.exit((view.tolist(), array.tolist(), refused) != ([-2.0], [2.0], "RuntimeError"))
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
