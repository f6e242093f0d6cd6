#!/usr/bin/env bash
# PyTorch 2.13.0: losses of a DTensor whose rows are spread unevenly are wrong, without an error:
# mse_loss, huber_loss, smooth_l1_loss, binary_cross_entropy and its variant with logits.
#
# Each rank takes the mean of its rows, and the result is the mean of these means, as if all ranks
# had as many rows. A rank without rows makes it NaN. `mean()` and l1_loss are right.
#
# Seen on 3 ranks (Python 3.11, CPU build), x = 0, 1, 2 ... against 0 (right in parentheses):
#   5 rows: mse_loss 7.667 (6.000), huber_loss 1.917 (1.600), l1_loss 2.000 (2.000)
#   4 rows: mse_loss nan (3.500), huber_loss nan (1.125), l1_loss 1.500 (1.500)
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
mesh = init_device_mesh("cpu", (3,))
seen = []
for count in (5, 4):
    x = torch.arange(float(count))
    spread = distribute_tensor(x, mesh, [Shard(0)])
    line = []
    for loss in (F.mse_loss, F.huber_loss, F.l1_loss):
        right = loss(x, torch.zeros_like(x)).item()
        found = loss(spread, torch.zeros_like(spread)).full_tensor().item()
        line.append(f"{loss.__name__} {found:.3f} ({right:.3f})")
    seen.append(", ".join(line))
if dist.get_rank() == 0:
    print(*seen, sep="\n", flush=True)
dist.barrier()
dist.destroy_process_group()
expected = [
    "mse_loss 7.667 (6.000), huber_loss 1.917 (1.600), l1_loss 2.000 (2.000)",
    "mse_loss nan (3.500), huber_loss nan (1.125), l1_loss 1.500 (1.500)",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 3 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
