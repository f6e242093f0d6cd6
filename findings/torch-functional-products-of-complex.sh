#!/usr/bin/env bash
# PyTorch 2.13.0 with gloo (2.14.1 too): the functional `reduce_scatter_tensor` of complex numbers
# with "product" multiplies real parts with real parts and imaginary parts with imaginary parts;
# with "max" and "min" it takes both apart as well, and returns a number that no rank has. No error
# is raised.
#
# The functional `all_reduce` and `torch.distributed.reduce_scatter_tensor` refuse the same with an
# error. The functional calls are those of DTensor and of compiled programs.
#
# Seen on 2 ranks (Python 3.11, CPU build); rank 0 has [1+1j, 0], rank 1 has [2-1j, 0]; the product of
# the first elements is 3+1j:
#   reduce_scatter_tensor: product (2-1j), max (2+1j), min (1-1j)
#   refused by: all_reduce, torch.distributed's
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.group.WORLD
x = torch.tensor([1 + 1j if rank == 0 else 2 - 1j, 0])
seen = {}
for op in ("product", "max", "min"):
    seen[op] = complex(functional.reduce_scatter_tensor(x, op, 0, world)[0])
OTHERS = {
    "all_reduce": lambda: functional.all_reduce(x, "product", world),
    "torch.distributed's": lambda: dist.reduce_scatter_tensor(
        torch.zeros(1, dtype=x.dtype), x, dist.ReduceOp.PRODUCT
    ),
}
refusing = []
for name, call in OTHERS.items():
    try:
        call()
    except RuntimeError:
        refusing.append(name)
if rank == 0:
    print("reduce_scatter_tensor:", ", ".join(f"{op} {number}" for op, number in seen.items()))
    print("refused by:", ", ".join(refusing), flush=True)
dist.barrier()
dist.destroy_process_group()
apart = {"product": 2 - 1j, "max": 2 + 1j, "min": 1 - 1j}
sys.exit(rank == 0 and seen != apart or refusing != list(OTHERS))
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
