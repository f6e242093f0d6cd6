#!/usr/bin/env bash
# PyTorch 2.13.0: `torch.gather` of DTensors takes numbers from the wrong rows if the index has
# fewer rows than the input and one of the two is spread by rows. No error is raised.
#
# `gather` along the columns lets an index have fewer rows: row i of the result comes from row i of
# the input. With DTensors each rank gathers from its rows of the input by its rows of the index,
# and these are not the same rows. An index with as many rows as the input is right.
#
# Seen on 2 ranks (Python 3.11, CPU build); rows of the input 0, 10, 20, 30, index 0 everywhere:
#   index of 2 rows, only the input spread: [0.0, 20.0]
#   index of 2 rows, only the index spread: [0.0, 20.0]
#   index of 2 rows, none spread: [0.0, 10.0]
#   index of 4 rows, only the input spread: [0.0, 10.0, 20.0, 30.0]
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
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
CASES = (
    (2, "only the input spread", Shard(0), Replicate(), [0.0, 20.0]),
    (2, "only the index spread", Replicate(), Shard(0), [0.0, 20.0]),
    (2, "none spread", Replicate(), Replicate(), [0.0, 10.0]),
    (4, "only the input spread", Shard(0), Replicate(), [0.0, 10.0, 20.0, 30.0]),
)
same = True
for count, name, of_rows, of_index, expected in CASES:
    rows = distribute_tensor(torch.arange(0.0, 40.0, 10.0).view(4, 1), mesh, [of_rows])
    index = distribute_tensor(torch.zeros(count, 1, dtype=torch.int64), mesh, [of_index])
    found = torch.gather(rows, 1, index).full_tensor().flatten().tolist()
    same = same and found == expected
    if dist.get_rank() == 0:
        print(f"index of {count} rows, {name}: {found}", flush=True)
dist.barrier()
dist.destroy_process_group()
sys.exit(not same)
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
