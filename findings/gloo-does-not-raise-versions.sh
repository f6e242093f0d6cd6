#!/usr/bin/env bash
# PyTorch 2.13.0 with gloo: `all_reduce`, `broadcast` and `reduce` write to a tensor that a backward
# pass needs, and autograd does not see it: the gradient is that of other numbers, without an error.
# `all_gather_into_tensor` and `reduce_scatter_tensor` raise the tensor's version, so that backward
# raises.
#
# Seen on 2 ranks (Python 3.11, CPU build); each rank computes the gradient of (a * (rank + 2))^2 at
# a = 1, after a collective on a.detach() * (rank + 2):
#   all_reduce: no error, gradient 20 on rank 0 (right: 8)
#   reduce_scatter_tensor: RuntimeError
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
CALLS = {
    "all_reduce": dist.all_reduce,
    "reduce_scatter_tensor": lambda t: dist.reduce_scatter_tensor(t[:1], torch.ones(2)),
}
seen = {}
for name, call in CALLS.items():
    a = torch.ones(1, requires_grad=True)
    b = a * (rank + 2)
    loss = (b * b).sum()
    call(b.detach())
    try:
        loss.backward()
        seen[name] = a.grad.item()
    except RuntimeError as error:
        seen[name] = type(error).__name__
dist.barrier()
if rank == 0:
    print(seen, flush=True)
expected = {"all_reduce": 2.0 * 5 * (rank + 2), "reduce_scatter_tensor": "RuntimeError"}
dist.destroy_process_group()
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
