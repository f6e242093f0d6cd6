#!/usr/bin/env bash
# lightning-fabric 2.6.6 (PyTorch 2.13.0, gloo, 2 processes): `fabric.all_reduce` takes the mean of
# integers, its default, as an integer: of 1 and 2 it is 1, of -1 and -2 it is -1. Small integers
# are added in their type, which wraps around: the mean of 100 and 100 as int8 is -28. The mean of
# two booleans is true if one is. No error is raised, and Python's numbers are taken by the call as
# well.
#
# So a mean of the ranks' counts, such as correct answers or tokens, is rounded towards 0, and that
# of hits given as 0 or 1 is 0 unless all ranks have 1. `torch.distributed.all_reduce` with
# ReduceOp.AVG refuses integers.
#
# Seen (x86-64, Python 3.11), ranks 0 and 1:
#   1 and 2: 1
#   1.0 and 2.0: 1.5
#   -1 and -2: -1
#   0 and 1: 0
#   int8 100 and 100: -28
#   True and False: True
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  lightning-fabric==2.6.6 torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import logging
import sys
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

import torch
from lightning_fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
CASES = {
    "1 and 2": (1, 2),
    "1.0 and 2.0": (1.0, 2.0),
    "-1 and -2": (-1, -2),
    "0 and 1": (0, 1),
    "int8 100 and 100": (torch.tensor(100, dtype=torch.int8),) * 2,
    "True and False": (torch.tensor(True), torch.tensor(False)),
}
seen = {}
for name, numbers in CASES.items():
    seen[name] = fabric.all_reduce(numbers[fabric.global_rank]).item()
    if fabric.is_global_zero:
        print(f"{name}: {seen[name]}", flush=True)
fabric.barrier()
torch.distributed.destroy_process_group()
sys.exit(list(seen.values()) != [1, 1.5, -1, 0, -28, True])
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
