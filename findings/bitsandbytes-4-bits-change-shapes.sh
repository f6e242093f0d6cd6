#!/usr/bin/env bash
# bitsandbytes 0.50.2 on CPUs: a vector that `quantize_4bit` has packed comes back as a matrix, if it
# has an even number of elements: (64,) as (1, 64), and (2,) as (2, 1). With an odd number it comes
# back as it was. A matrix of two elements comes back transposed. The state beside the packed numbers
# has the right shape, and `quantize_blockwise` keeps it.
#
# PyTorch adds (64,) and (1, 64) without an error: a sum of what ranks have sent is right in its
# numbers and has one dimension more, and a vector of two plus its own copy gives four numbers.
#
# Seen (x86-64, Python 3.11, PyTorch 2.13.0), shape, that of the state, that of the result:
#   (64,): state (64,), 4 bits (1, 64), 8 bits (64,)
#   (63,): state (63,), 4 bits (63,), 8 bits (63,)
#   (2,): state (2,), 4 bits (2, 1), 8 bits (2,)
#   (1, 2): state (1, 2), 4 bits (2, 1), 8 bits (1, 2)
#   (8, 8): state (8, 8), 4 bits (8, 8), 8 bits (8, 8)
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

SHAPES = {(64,): (1, 64), (63,): (63,), (2,): (2, 1), (1, 2): (2, 1), (8, 8): (8, 8)}
seen = {}
for shape in SHAPES:
    x = torch.ones(shape)
    packed, state = functional.quantize_4bit(x)
    found = tuple(functional.dequantize_4bit(packed, state).shape)
    bytes_found = tuple(functional.dequantize_blockwise(*functional.quantize_blockwise(x)).shape)
    seen[shape] = tuple(state.shape), found, bytes_found
    print("{}: state {}, 4 bits {}, 8 bits {}".format(shape, *seen[shape]))
sys.exit(seen != {shape: (shape, found, shape) for shape, found in SHAPES.items()})
PROGRAM
"$folder/env/bin/python" "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
