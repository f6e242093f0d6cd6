#!/usr/bin/env bash
# PyTorch 2.13.0 (2.14.1 too): converting a negative number to float8_e8m0fnu, the type of scales of
# the MX formats, drops its sign: -2 becomes 2. Zero becomes 2**-127, the smallest number. No error
# is raised. ml_dtypes 0.6.0 and gfloat 0.5.2, which read the same specification, give NaN for both.
#
# The type has neither a sign nor zero, but it has NaN. A difference of two scales, or one that has
# not been set yet, looks like a scale in PyTorch; written as bytes by one library and made again by
# the other, arrays of scales differ.
#
# Seen (x86-64, Python 3.11, CPU build), of [2, 1.4, -2, 0]:
#   PyTorch: [2.0, 1.0, 2.0, 5.877471754111438e-39]
#   ml_dtypes: [2.0, 1.0, nan, nan]
#   gfloat: [2.0, 1.0, nan, nan]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 ml_dtypes==0.6.0 gfloat==0.5.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import gfloat
import ml_dtypes
import numpy as np
import torch
from gfloat.formats import format_info_ocp_e8m0 as E8M0

NUMBERS = [2.0, 1.4, -2.0, 0.0]


def encoded(number):
    return gfloat.encode_float(E8M0, gfloat.round_float(E8M0, number))


seen = {
    "PyTorch": torch.tensor(NUMBERS).to(torch.float8_e8m0fnu).tolist(),
    "ml_dtypes": np.array(NUMBERS).astype(ml_dtypes.float8_e8m0fnu).astype(float).tolist(),
    "gfloat": [gfloat.decode_float(E8M0, encoded(x)).fval for x in NUMBERS],
}
for name, scales in seen.items():
    print(f"{name}: {scales}")
expected = {"PyTorch": [2.0, 1.0, 2.0, 2.0**-127]}
expected["ml_dtypes"] = expected["gfloat"] = [2.0, 1.0, float("nan"), float("nan")]
sys.exit(str(seen) != str(expected))
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
