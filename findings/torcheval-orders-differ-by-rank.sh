#!/usr/bin/env bash
# torcheval 0.0.7 with gloo: `sync_and_compute` of metrics that return one number per example (Cat,
# HitRate, ReciprocalRank) returns them in another order on each rank: its own first, then those of
# the others. By its documentation all ranks get the synchronized metric.
#
# `torch.distributed.all_gather` of the same numbers has the order of the ranks everywhere. A program
# that picks the hardest examples by their places picks others on each rank.
#
# Seen on 3 ranks (x86-64, Python 3.11, PyTorch 2.13.0), rank r has the number r:
#   rank 0: Cat [0.0, 1.0, 2.0], all_gather [0.0, 1.0, 2.0]
#   rank 1: Cat [1.0, 0.0, 2.0], all_gather [0.0, 1.0, 2.0]
#   rank 2: Cat [2.0, 0.0, 1.0], all_gather [0.0, 1.0, 2.0]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 torcheval==0.0.7 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import torch
import torch.distributed as dist
from torcheval.metrics import Cat
from torcheval.metrics.toolkit import sync_and_compute

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
own = torch.tensor([float(rank)])
synchronized = sync_and_compute(Cat().update(own)).tolist()
gathered = [torch.zeros(1) for _ in range(size)]
dist.all_gather(gathered, own)
in_order = torch.cat(gathered).tolist()
for turn in range(size):
    dist.barrier()
    if turn == rank:
        print(f"rank {rank}: Cat {synchronized}, all_gather {in_order}", flush=True)
dist.barrier()
dist.destroy_process_group()
own_first = [float(rank), *(float(other) for other in range(size) if other != rank)]
sys.exit(synchronized != own_first or in_order != [0.0, 1.0, 2.0])
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 3 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
