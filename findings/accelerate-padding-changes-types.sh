#!/usr/bin/env bash
# accelerate 1.15.0 (PyTorch 2.13.0, gloo, 2 processes): `pad_across_processes` changes the type of
# what it pads and leaves that of what needs no padding: a mask becomes int64 on the shorter rank
# and stays bool on the longer one, integers padded with NaN become floats on one rank. No error is
# raised. uint8 padded with -100, the index that losses ignore, gets 156.
#
# "So they can safely be gathered", says its documentation; tensors of two types cannot be. `~mask`
# of the padded mask has -2 for true.
#
# Seen (x86-64, Python 3.11), rank 0 has three ones, rank 1 two:
#   bool padded with 0: rank 0 torch.bool, rank 1 torch.int64 [1, 1, 0]
#   int64 padded with nan: rank 0 torch.int64, rank 1 torch.float32 [1.0, 1.0, nan]
#   uint8 padded with -100: rank 0 torch.uint8, rank 1 torch.uint8 [1, 1, 156]
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
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import pad_across_processes

state = PartialState(cpu=True)
rank = state.process_index
seen = []
for dtype, pad in ((torch.bool, 0), (torch.int64, float("nan")), (torch.uint8, -100)):
    padded = pad_across_processes(torch.ones(3 - rank, dtype=dtype), pad_index=pad)
    other = [None, None]
    dist.all_gather_object(other, (padded.dtype, padded.tolist()))
    (first, _), (second, numbers) = other
    name = str(dtype).removeprefix("torch.")
    seen.append(f"{name} padded with {pad}: rank 0 {first}, rank 1 {second} {numbers}")
state.print(*seen, sep="\n", flush=True)
state.destroy_process_group()
expected = [
    "bool padded with 0: rank 0 torch.bool, rank 1 torch.int64 [1, 1, 0]",
    "int64 padded with nan: rank 0 torch.int64, rank 1 torch.float32 [1.0, 1.0, nan]",
    "uint8 padded with -100: rank 0 torch.uint8, rank 1 torch.uint8 [1, 1, 156]",
]
sys.exit(seen != expected)
PROGRAM
ACCELERATE_USE_CPU=true "$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
