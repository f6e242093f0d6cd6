#!/usr/bin/env bash
# PyTorch 2.13.0: DDP's `join(divide_by_initial_world_size=False)` has no effect if a communication
# hook is registered, not even with `allreduce_hook`, of which the documentation says that results
# are the same as without a hook.
#
# The option divides sums of gradients by the number of ranks that still have input. The hooks
# divide by the size of the group, so after the first rank has run out of input, gradients become
# smaller.
#
# Seen on 2 ranks (Python 3.11, CPU build); gradients of rank 1 in 3 steps, rank 0 has input for 2:
#   without a hook: 1.5, 1.5, 2.0
#   allreduce_hook: 1.5, 1.5, 1.0
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
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
seen = {}
for name, hook in {"without a hook": None, "allreduce_hook": allreduce_hook}.items():
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    if hook is not None:
        model.register_comm_hook(None, hook)
    seen[name] = []
    with model.join(divide_by_initial_world_size=False):
        for _ in range(2 + rank):
            model.zero_grad()
            model(torch.full((1, 1), rank + 1.0)).sum().backward()
            seen[name].append(model.module.weight.grad.item())
    if rank == 1:
        print(f"{name}: {', '.join(map(str, seen[name]))}", flush=True)
dist.barrier()
dist.destroy_process_group()
expected = {"without a hook": [1.5, 1.5, 2.0], "allreduce_hook": [1.5, 1.5, 1.0]}
sys.exit(seen != {name: values[: 2 + rank] for name, values in expected.items()})
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
