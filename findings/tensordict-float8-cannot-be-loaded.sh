#!/usr/bin/env bash
# tensordict 0.15.3 (PyTorch 2.13.0): `memmap` and `save` of a TensorDict with a tensor of float8
# write it without an error, and `load_memmap` of that folder raises KeyError 'torch.float8_e4m3fn'.
# No tensor of the folder can be loaded so, those of other types neither. bfloat16 and complex32
# can.
#
# A checkpoint of weights or optimizer states in float8 is found unreadable when it is needed. The
# bytes are there; `consolidate` refuses the type at once.
#
# Seen (Python 3.11, CPU build):
#   float8_e4m3fn: memmap [1.0, 2.0], load_memmap KeyError, consolidate KeyError
#   float8_e5m2: memmap [1.0, 2.0], load_memmap KeyError, consolidate KeyError
#   bfloat16: memmap [1.0, 2.0], load_memmap [1.0, 2.0], consolidate [1.0, 2.0]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 tensordict==0.15.3 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys
import tempfile

import torch
from tensordict import TensorDict


def outcome(call):
    try:
        return str(call()["weights"].float().tolist())
    except KeyError as error:
        return type(error).__name__


seen = []
for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16"):
    weights = torch.tensor([1.0, 2.0]).to(getattr(torch, name))
    state = TensorDict({"weights": weights, "step": torch.tensor(7)})
    with tempfile.TemporaryDirectory() as folder:
        written = outcome(lambda: state.memmap(folder))
        loaded = outcome(lambda: TensorDict.load_memmap(folder))
    together = outcome(state.consolidate)
    seen.append(f"{name}: memmap {written}, load_memmap {loaded}, consolidate {together}")
print(*seen, sep="\n")
expected = [
    "float8_e4m3fn: memmap [1.0, 2.0], load_memmap KeyError, consolidate KeyError",
    "float8_e5m2: memmap [1.0, 2.0], load_memmap KeyError, consolidate KeyError",
    "bfloat16: memmap [1.0, 2.0], load_memmap [1.0, 2.0], consolidate [1.0, 2.0]",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
