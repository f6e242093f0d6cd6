#!/usr/bin/env bash
# PyTorch 2.13.0 with gloo: `all_reduce`, `reduce` and `broadcast` of a negated view leave it as it
# was, without an error. Conjugated tensors raise RuntimeError.
#
# `x.conj().imag` is a view whose "negative" bit says that its numbers have to be negated when they
# are read. PyTorch calls the collective with a negated copy, and the result stays in that copy.
# `all_gather` from such a view is right.
#
# Seen on 2 ranks (Python 3.11, CPU build), each with [-2, -4]; all_reduce must give [-4, -8] and a
# broadcast of [7, 7] by rank 0 to rank 1 must give [7, 7]:
#   all_reduce [-2.0, -4.0], broadcast [-2.0, -4.0]
#   all_gather [-2.0, -4.0, -2.0, -4.0], all_reduce of x.conj(): RuntimeError
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

dist.init_process_group("gloo")
rank = dist.get_rank()


def view():
    return torch.tensor([1 + 2j, 3 + 4j]).conj().imag


reduced = view()
dist.all_reduce(reduced)
received = view() if rank == 1 else torch.full((2,), 7.0)
dist.broadcast(received, 0)
gathered = [torch.zeros(2), torch.zeros(2)]
dist.all_gather(gathered, view())
try:
    refused = dist.all_reduce(torch.tensor([1 + 2j]).conj())
except RuntimeError as error:
    refused = type(error).__name__
seen = (reduced.tolist(), received.tolist(), torch.cat(gathered).tolist(), refused)
if rank == 1:
    print(f"all_reduce {seen[0]}, broadcast {seen[1]}")
    print(f"all_gather {seen[2]}, all_reduce of x.conj(): {seen[3]}", flush=True)
dist.barrier()
dist.destroy_process_group()
left = [-2.0, -4.0]
expected = (left, left if rank == 1 else [7.0, 7.0], left + left, "RuntimeError")
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
