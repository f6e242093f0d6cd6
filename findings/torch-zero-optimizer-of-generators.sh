#!/usr/bin/env bash
# PyTorch 2.13.0 (2.14.1 too): ZeroRedundancyOptimizer leaves out the parameters of a group that is
# given as `{"params": module.parameters()}`, the form that the pages of torch.optim teach. They are
# never updated; no error is raised. Lists, and the same groups given to SGD itself, are right.
#
# `parameters()` is a generator. The optimizer goes through the groups once to check them, which
# uses the generators up, and makes groups of what is left. If all groups are such, even the first
# step does nothing.
#
# Seen on 2 ranks (Python 3.11, CPU build), three steps of learning rate 0.1 with gradient 1 from 1:
#   lists: body 0.7, head 0.7; the groups have 1 and 1
#   a generator and a list: body 1.0, head 0.7; the groups have 0 and 1
#   the same with SGD: body 0.7, head 0.7; the groups have 1 and 1
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
from torch.distributed.optim import ZeroRedundancyOptimizer

dist.init_process_group("gloo")


def trained(make, body_as):
    body, head = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))
    for layer in (body, head):
        torch.nn.init.ones_(layer.weight)
    optimizer = make([{"params": body_as(body.parameters())}, {"params": list(head.parameters())}])
    for _ in range(3):
        optimizer.zero_grad()
        (body.weight + head.weight).sum().backward()
        optimizer.step()
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return round(body.weight.item(), 6), round(head.weight.item(), 6), sizes


def zero(groups):
    return ZeroRedundancyOptimizer(groups, torch.optim.SGD, lr=0.1)


def sgd(groups):
    return torch.optim.SGD(groups, lr=0.1)


seen = {
    "lists": trained(zero, list),
    "a generator and a list": trained(zero, iter),
    "the same with SGD": trained(sgd, iter),
}
if dist.get_rank() == 0:
    for name, (body, head, sizes) in seen.items():
        print(f"{name}: body {body}, head {head}; the groups have {sizes[0]} and {sizes[1]}")
    sys.stdout.flush()
dist.barrier()
dist.destroy_process_group()
right, wrong = (0.7, 0.7, [1, 1]), (1.0, 0.7, [0, 1])
sys.exit(list(seen.values()) != [right, wrong, right])
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
