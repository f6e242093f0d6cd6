#!/usr/bin/env bash
# bitsandbytes 0.50.2 on CPUs: `quantize_blockwise` makes ordinary numbers of NaN: the most negative
# one of the block, and a block of nothing but NaN becomes zeros. Infinity comes back with the sign
# turned, and all other numbers of its block, zeros too, come back as plus infinity.
#
# The largest magnitude of a block, by which it is scaled, leaves NaN out, and the search for the
# nearest of 256 values ends at the first of them for whatever is not a number. The 4-bit formats of
# the same package give NaN for the block.
#
# Ranks that send each other gradients in this form average a NaN away: a check for NaN after the
# exchange, as loss scaling has it, passes.
#
# Seen (x86-64, Python 3.11, PyTorch 2.13.0):
#   [nan, 1, -1, 0.5]: 8 bits [-0.993, 1.0, -0.993, 0.501], nf4 [nan, nan, nan, nan]
#   [nan, nan]: 8 bits [-0.0, -0.0], nf4 [nan, nan]
#   [inf, 1, -1, 0]: 8 bits [-inf, inf, inf, inf], nf4 [inf, nan, nan, nan]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 bitsandbytes==0.50.2 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import torch
from bitsandbytes import functional

INPUTS = ("[nan, 1, -1, 0.5]", "[nan, nan]", "[inf, 1, -1, 0]")


def rounded(x):
    return [round(number, 3) for number in x.flatten().tolist()]


seen = []
for text in INPUTS:
    x = torch.tensor([float(number) for number in text.strip("[]").split(",")])
    in_8_bits = rounded(functional.dequantize_blockwise(*functional.quantize_blockwise(x)))
    in_4_bits = rounded(functional.dequantize_4bit(*functional.quantize_4bit(x, quant_type="nf4")))
    seen.append(f"8 bits {in_8_bits}, nf4 {in_4_bits}")
    print(f"{text}: {seen[-1]}")
expected = [
    "8 bits [-0.993, 1.0, -0.993, 0.501], nf4 [nan, nan, nan, nan]",
    "8 bits [-0.0, -0.0], nf4 [nan, nan]",
    "8 bits [-inf, inf, inf, inf], nf4 [inf, nan, nan, nan]",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
