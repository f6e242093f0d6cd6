#!/usr/bin/env bash
# PyTorch 2.13.0: what is written to a slice of a DTensor along the dimension in which it is spread
# is lost, without an error. Along another dimension it is written, as with any tensor.
#
# A slice, a row or a chunk of a tensor is a view. Here the DTensor makes a copy, and says nothing
# when the copy is changed in place. So a model that sets the bias of one gate, or the embedding of
# padding, to zero keeps its random numbers once its parameters are DTensors.
#
# Seen on 2 ranks (Python 3.11, CPU build); ones of 4 rows and 2 columns, rows 0, 1 (or 2) set to 0,
# sum of all that is left:
#   rows spread: x[1:3].zero_() 8.0, x[0].zero_() 8.0, x.chunk(2)[0].zero_() 8.0
#   columns spread: x[1:3].zero_() 4.0, x[0].zero_() 6.0, x.chunk(2)[0].zero_() 4.0
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
VIEWS = {
    "x[1:3]": lambda x: x[1:3],
    "x[0]": lambda x: x[0],
    "x.chunk(2)[0]": lambda x: x.chunk(2)[0],
}
seen = []
for dimension, name in enumerate(("rows", "columns")):
    line = []
    for view, call in VIEWS.items():
        x = distribute_tensor(torch.ones(4, 2), mesh, [Shard(dimension)])
        call(x).zero_()
        line.append(f"{view}.zero_() {x.full_tensor().sum().item()}")
    seen.append(f"{name} spread: {', '.join(line)}")
if dist.get_rank() == 0:
    print(*seen, sep="\n", flush=True)
dist.barrier()
dist.destroy_process_group()
expected = [
    "rows spread: x[1:3].zero_() 8.0, x[0].zero_() 8.0, x.chunk(2)[0].zero_() 8.0",
    "columns spread: x[1:3].zero_() 4.0, x[0].zero_() 6.0, x.chunk(2)[0].zero_() 4.0",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
