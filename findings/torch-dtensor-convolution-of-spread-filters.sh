#!/usr/bin/env bash
# PyTorch 2.13.0: a convolution of DTensors whose filters are spread over the ranks gives each rank
# the channels of its own filters, and calls that the whole result (Replicate). No error is raised.
#
# The DTensor's shape tells of all channels; `full_tensor()` returns a part, another one on each
# rank. The same holds for conv1d, conv3d and transposed convolutions. `linear` with a weight spread
# in the same way is right.
#
# Seen on 2 ranks (Python 3.11, CPU build): four filters 1, 2, 3, 4 of one element, applied to 1:
#   rank 0: conv2d of shape (1, 4, 1, 1), Replicate, full [1.0, 2.0]; linear [1.0, 2.0, 3.0, 4.0]
#   rank 1: conv2d of shape (1, 4, 1, 1), Replicate, full [3.0, 4.0]; linear [1.0, 2.0, 3.0, 4.0]
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
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2,))
filters = torch.arange(1.0, 5.0).view(4, 1)
weight = distribute_tensor(filters, mesh, [Shard(0)])
image = distribute_tensor(torch.ones(1, 1, 1, 1), mesh, [Replicate()])
kernel = distribute_tensor(filters.view(4, 1, 1, 1), mesh, [Shard(0)])
result = F.conv2d(image, kernel)
shape = tuple(result.shape)
kind = type(result.placements[0]).__name__
full = result.full_tensor().flatten().tolist()
linear = F.linear(image.view(1, 1), weight).full_tensor().flatten().tolist()
for turn in range(2):
    if turn == rank:
        found = f"conv2d of shape {shape}, {kind}, full {full}"
        print(f"rank {rank}: {found}; linear {linear}", flush=True)
    dist.barrier()
dist.destroy_process_group()
part = ([1.0, 2.0], [3.0, 4.0])[rank]
sys.exit((shape, kind, full, linear) != ((1, 4, 1, 1), "Replicate", part, [1.0, 2.0, 3.0, 4.0]))
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
