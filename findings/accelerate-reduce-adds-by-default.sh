#!/usr/bin/env bash
# accelerate 1.15.0 (PyTorch 2.13.0, gloo, 2 processes): `reduce` with reduction="none", which its
# documentation offers, returns the sum. So does every other name it does not know: "min", "avg",
# "Mean". No error is raised. "mean", "sum" and "max" are what they say.
#
# So the smallest of the ranks' numbers, asked for as in `torch.distributed`, is their sum, and in a
# program with one process it is right.
#
# Seen (x86-64, Python 3.11), rank 0 has 1, rank 1 has 2:
#   mean 1.5, sum 3.0, max 2.0, none 3.0, min 3.0, avg 3.0, Mean 3.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  accelerate==1.15.0 torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import torch
from accelerate import PartialState
from accelerate.utils import reduce

state = PartialState(cpu=True)
own = torch.tensor([1.0 + state.process_index])
names = ("mean", "sum", "max", "none", "min", "avg", "Mean")
seen = ", ".join(f"{name} {reduce(own, name).item()}" for name in names)
state.print(seen, flush=True)
documented = '"none"' in reduce.__doc__
state.destroy_process_group()
expected = "mean 1.5, sum 3.0, max 2.0, none 3.0, min 3.0, avg 3.0, Mean 3.0"
sys.exit(not documented or seen != expected)
PROGRAM
ACCELERATE_USE_CPU=true "$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
