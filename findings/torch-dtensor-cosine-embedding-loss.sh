#!/usr/bin/env bash
# PyTorch 2.13.0: `cosine_embedding_loss` of DTensors whose columns are spread is too large, without
# an error: the loss of a vector with itself is the number of ranks less one, instead of 0.
#
# The loss is 1 - c, where the cosine c is a sum over ranks, still to be taken (Partial). Every rank
# adds its own 1. The same sum written in Python, 1 - cosine_similarity(x, x), is right, and so is
# the loss of spread rows.
#
# Seen (Python 3.11, CPU build), x has one row of six numbers, loss of x with x:
#   2 ranks: columns spread 1.0, rows spread 0.0; 1 - cosine_similarity 0.0
#   3 ranks: columns spread 2.0, rows spread 0.0; 1 - cosine_similarity 0.0
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
size = dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))
seen = []
for dimension in (1, 0):
    x = distribute_tensor(torch.ones(1, 6), mesh, [Shard(dimension)])
    same = distribute_tensor(torch.ones(1), mesh, [Replicate()])
    seen.append(F.cosine_embedding_loss(x, x, same, reduction="sum").full_tensor().item())
x = distribute_tensor(torch.ones(1, 6), mesh, [Shard(1)])
seen.append((1 - F.cosine_similarity(x, x)).full_tensor().item())
seen = [abs(round(number, 5)) for number in seen]
if dist.get_rank() == 0:
    spread = f"columns spread {seen[0]}, rows spread {seen[1]}"
    print(f"{size} ranks: {spread}; 1 - cosine_similarity {seen[2]}", flush=True)
dist.barrier()
dist.destroy_process_group()
sys.exit(seen != [size - 1.0, 0.0, 0.0])
PROGRAM
for ranks in 2 3; do
  "$folder/env/bin/torchrun" --standalone --nproc-per-node "$ranks" \
    "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
done
