#!/usr/bin/env bash
# PyTorch 2.13.0: DDP's communication hook `batched_powerSGD_hook`, which the documentation offers
# as the faster variant of `powerSGD_hook`, raises AssertionError as soon as it begins to compress.
#
# Both hooks use one function to orthogonalize. It demands a batch of matrices (three dimensions);
# the batched hook, which views all gradients as one square matrix, calls it with two. The first
# `start_powerSGD_iter` steps are a plain all_reduce, by default 1,000, so a training job ends late.
#
# Seen on 2 ranks (Python 3.11, CPU build), start_powerSGD_iter=2; outcomes of 4 backward passes:
#   powerSGD_hook: ok, ok, ok, ok
#   batched_powerSGD_hook: ok, ok, AssertionError
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
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
HOOKS = {
    "powerSGD_hook": power_sgd.powerSGD_hook,
    "batched_powerSGD_hook": power_sgd.batched_powerSGD_hook,
}
seen = {}
for name, hook in HOOKS.items():
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    state = power_sgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, hook)
    seen[name] = []
    for _ in range(4):
        try:
            model(torch.ones(8, 64)).sum().backward()
            seen[name].append("ok")
        except Exception as error:
            seen[name].append(type(error).__name__)
            break
    if dist.get_rank() == 0:
        print(f"{name}: {', '.join(seen[name])}", flush=True)
dist.barrier()
dist.destroy_process_group()
expected = {"powerSGD_hook": ["ok"] * 4, "batched_powerSGD_hook": ["ok", "ok", "AssertionError"]}
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
