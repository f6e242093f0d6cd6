#!/usr/bin/env bash
# PyTorch 2.13.0: the gradient of `adaptive_avg_pool2d` of one image (three dimensions) is wrong if
# the image is a DTensor whose rows of pixels are spread, without an error. The result is right.
#
# Each rank takes its part of the image for a whole image, and computes its gradient from as large a
# part of the result's. The same image with a
# dimension for the batch before it (four dimensions), and `max_pool2d` of either, are right.
#
# Seen on 2 ranks (Python 3.11, CPU build), four rows of one pixel averaged to three, gradient of
# their sum:
#   three dimensions: result [0.5, 1.5, 2.5], gradient [1.0, 1.0, 0.5, 0.5]
#   four dimensions: result [0.5, 1.5, 2.5], gradient [0.5, 1.0, 1.0, 0.5]
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
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
seen = []
for name, shape in (("three", (1, 4, 1)), ("four", (1, 1, 4, 1))):
    rows = [Shard(len(shape) - 2)]
    image = distribute_tensor(torch.arange(4.0).view(shape), mesh, rows).requires_grad_()
    pooled = F.adaptive_avg_pool2d(image, (3, 1))
    pooled.sum().backward()
    result = pooled.full_tensor().flatten().tolist()
    gradient = image.grad.full_tensor().flatten().tolist()
    seen.append((result, gradient))
    if dist.get_rank() == 0:
        print(f"{name} dimensions: result {result}, gradient {gradient}", flush=True)
dist.barrier()
dist.destroy_process_group()
pooled = [0.5, 1.5, 2.5]
sys.exit(seen != [(pooled, [1.0, 1.0, 0.5, 0.5]), (pooled, [0.5, 1.0, 1.0, 0.5])])
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
