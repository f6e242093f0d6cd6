#!/usr/bin/env bash
# PyTorch 2.13.0: `cross_entropy` of a DTensor whose rows are spread is wrong if targets are ignored
# (-100, as for padding), though all ranks have as many rows. No error is raised. If all targets of
# a rank are ignored, the loss is NaN.
#
# The mean is defined as the sum over the rows that count by their number. Each rank takes that mean
# of its rows, and the result is the mean of these means. With `reduction="sum"` it is right.
#
# Seen on 2 ranks (Python 3.11, CPU build), 4 rows, loss of rows that count 2.127 if 1, 0.127 if 0
# (right in parentheses):
#   targets [1, 0, 0, 0]: mean 0.627 (0.627), sum 2.508 (2.508)
#   targets [1, -100, 0, 0]: mean 1.127 (0.794), sum 2.381 (2.381)
#   targets [-100, -100, 0, 0]: mean nan (0.127), sum 0.254 (0.254)
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
rows = torch.tensor([[2.0, 0.0]] * 4)
seen = []
for targets in ([1, 0, 0, 0], [1, -100, 0, 0], [-100, -100, 0, 0]):
    pair = (rows, torch.tensor(targets))
    spread = [distribute_tensor(part, mesh, [Shard(0)]) for part in pair]
    line = []
    for reduction in ("mean", "sum"):
        found = F.cross_entropy(*spread, reduction=reduction).full_tensor().item()
        right = F.cross_entropy(*pair, reduction=reduction).item()
        line.append(f"{reduction} {found:.3f} ({right:.3f})")
    seen.append(f"targets {targets}: {', '.join(line)}")
if dist.get_rank() == 0:
    print(*seen, sep="\n", flush=True)
dist.barrier()
dist.destroy_process_group()
expected = [
    "targets [1, 0, 0, 0]: mean 0.627 (0.627), sum 2.508 (2.508)",
    "targets [1, -100, 0, 0]: mean 1.127 (0.794), sum 2.381 (2.381)",
    "targets [-100, -100, 0, 0]: mean nan (0.127), sum 0.254 (0.254)",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
