#!/usr/bin/env bash
# PyTorch 2.13.0: gradients of torch.distributed.nn.functional are those of a sum, whatever the
# operation, except for all_reduce, which takes the operation itself of the gradients.
#
# So the gradients of `reduce` and `reduce_scatter` with ReduceOp.AVG are too large by the number of
# ranks, those of `all_reduce` with AVG are right; and the gradient of a maximum is the maximum of
# the gradients, also on ranks whose number is not the largest. The functional collectives refuse
# both.
#
# Seen on 2 ranks (Python 3.11, CPU build): gradient of the sum of all ranks' results for x = [rank,
# rank], rank 0 and rank 1:
#   all_reduce AVG:     [1.0, 1.0] [1.0, 1.0]
#   reduce_scatter AVG: [1.0, 1.0] [1.0, 1.0] (right: 0.5)
#   reduce AVG:         [1.0, 1.0] [1.0, 1.0] (right: 0.5; only the root's result counts)
#   all_reduce MAX:     [1.0, 1.0] [1.0, 1.0] (right: 0 and 2)
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
import torch.distributed.nn.functional as collectives
from torch.distributed import ReduceOp

dist.init_process_group("gloo")
rank = dist.get_rank()
CALLS = {
    "all_reduce AVG": lambda x: collectives.all_reduce(x, ReduceOp.AVG),
    "reduce_scatter AVG": lambda x: collectives.reduce_scatter(
        torch.empty(1), [x[:1], x[1:]], ReduceOp.AVG
    ),
    "reduce AVG": lambda x: collectives.reduce(x, 0, ReduceOp.AVG) * (rank == 0),
    "all_reduce MAX": lambda x: collectives.all_reduce(x, ReduceOp.MAX),
}
same = True
for name, call in CALLS.items():
    x = torch.full((2,), float(rank), requires_grad=True)
    call(x).sum().backward()
    gradients = [None, None]
    dist.all_gather_object(gradients, x.grad.tolist())
    if rank == 0:
        print(f"{name}:", *gradients, flush=True)
    same = same and gradients == [[1.0, 1.0]] * 2
dist.barrier()
dist.destroy_process_group()
sys.exit(not same)
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
