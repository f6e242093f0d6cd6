#!/usr/bin/env bash
# PyTorch 2.13.0 with gloo (2.14.1 too): once an error has left the body of `_coalescing_manager`,
# collectives on that group do nothing for the rest of the program, without an error: `all_reduce`
# and `all_gather_into_tensor` only note that they have been called. `broadcast` still works.
#
# The list of postponed calls is taken off the group after the body, but not if the body raises. A
# program that catches the error of one step (a batch that is too large, say) and goes on with the
# next one trains each rank for itself from there on. `async_op=True` gives a handle that
# raises when it is waited for; only a second use of the manager raises at once.
#
# Seen on 2 ranks (Python 3.11, CPU build), each with ones, after a KeyError that was caught:
#   all_reduce [1.0, 1.0], all_gather_into_tensor [0.0, 0.0], broadcast of [7.0]: [7.0]
#   the manager again: ValueError, ProcessGroup has non-empty op list at the start of coalescing
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import contextlib
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
with contextlib.suppress(KeyError), dist._coalescing_manager():
    dist.all_reduce(torch.ones(1))
    raise KeyError("the next gradient")
total, gathered = torch.ones(2), torch.zeros(2)
dist.all_reduce(total)
dist.all_gather_into_tensor(gathered, torch.ones(1))
sent = torch.tensor([7.0 if rank == 0 else 0.0])
dist.broadcast(sent, 0)
try:
    with dist._coalescing_manager():
        again = "no error"
except ValueError as error:
    again = f"{type(error).__name__}, {error}"
seen = total.tolist(), gathered.tolist(), sent.tolist()
if rank == 1:
    print("all_reduce {}, all_gather_into_tensor {}, broadcast of [7.0]: {}".format(*seen))
    print("the manager again:", again, flush=True)
dist.barrier()
dist.destroy_process_group()
sys.exit(seen != ([1.0, 1.0], [0.0, 0.0], [7.0]) or not again.startswith("ValueError"))
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
