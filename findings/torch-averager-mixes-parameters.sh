#!/usr/bin/env bash
# PyTorch 2.13.0: the averagers of local SGD (PeriodicModelAverager, PostLocalSGDOptimizer) average
# one parameter of one rank with another parameter of another rank, without an error.
#
# They leave out parameters without a gradient and put the others one behind the other in a buffer
# for all_reduce. If the ranks have used different parts of the model since `zero_grad()`, as in a
# mixture of experts, the buffers hold different parameters, and equal sizes hide it.
#
# Seen on 2 ranks (Python 3.11, CPU build). Both have a = 10 and b = 20; rank 0 has used a, rank 1
# b; the average of equal models must be the same model:
#   rank 0: a 15.0, b 20.0
#   rank 1: a 10.0, b 15.0
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
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

dist.init_process_group("gloo")
rank = dist.get_rank()
a = torch.nn.Parameter(torch.tensor([10.0]))
b = torch.nn.Parameter(torch.tensor([20.0]))
optimizer = torch.optim.SGD([a, b], lr=0.0)
averager = PeriodicModelAverager(period=2)
for used in ((a, b)[rank], a):  # averages at the first step of these two
    optimizer.zero_grad()
    used.sum().backward()
    optimizer.step()
    averager.average_parameters(optimizer.param_groups)
for turn in range(2):
    if turn == rank:
        print(f"rank {rank}: a {a.item()}, b {b.item()}", flush=True)
    dist.barrier()
dist.destroy_process_group()
sys.exit((a.item(), b.item()) != ((15.0, 20.0), (10.0, 15.0))[rank])
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
