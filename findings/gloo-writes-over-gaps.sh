#!/usr/bin/env bash
# PyTorch 2.13.0 with gloo: `all_reduce`, `reduce`, `broadcast`, `scatter`, `reduce_scatter` and
# `all_to_all_single` into a view with gaps, such as a column of a matrix, go through the memory
# from its first number on as if there were none. No error is raised: numbers of the columns beside
# it are reduced or overwritten, and some of the column are left as they were.
#
# `all_gather`, `gather` and `reduce_scatter_tensor` of the same view are right. So a program that
# adds up one column of a table of counters keeps a part of its own counts, and spoils others.
#
# Seen on 2 ranks (Python 3.11, CPU build); the matrix is [[1, -7], [1, -7]], and the result belongs
# into its first column. Last row of each group: what it should be.
#   all_reduce:            column [2, 1], beside it [-14, -7]
#   reduce:                column [2, 1], beside it [-14, -7]
#   reduce_scatter:        column [2, 1], beside it [-6, -7]
#   reduce_scatter_tensor: column [2, 2], beside it [-7, -7]
#   broadcast:             column [10, 1], beside it [20, -7]
#   scatter:               column [10, 1], beside it [20, -7]
#   all_to_all_single:     column [10, 1], beside it [20, -7]
#   all_gather:            column [10, 20], beside it [-7, -7]
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
given = torch.tensor([10.0, 20.0])
root = dist.get_rank() == 0
CALLS = {
    "all_reduce": dist.all_reduce,
    "reduce": lambda view: dist.reduce(view, 1),
    "reduce_scatter": lambda view: dist.reduce_scatter(view, [torch.ones(2)] * 2),
    "reduce_scatter_tensor": lambda view: dist.reduce_scatter_tensor(view, torch.ones(4)),
    "broadcast": lambda view: dist.broadcast(given if root else view, 0),
    "scatter": lambda view: dist.scatter(view, [given, given] if root else None),
    "all_to_all_single": lambda view: dist.all_to_all_single(view, given[[int(not root)] * 2]),
    "all_gather": lambda view: dist.all_gather([view, torch.zeros(2)], given),
}
seen = []
for name, call in CALLS.items():
    matrix = torch.tensor([[1.0, -7.0], [1.0, -7.0]])
    call(matrix[:, 0])
    column, beside = matrix.int().T.tolist()
    seen.append(f"{name}: column {column}, beside it {beside}")
if not root:
    print(*seen, sep="\n", flush=True)
dist.barrier()
dist.destroy_process_group()
expected = [
    "all_reduce: column [2, 1], beside it [-14, -7]",
    "reduce: column [2, 1], beside it [-14, -7]",
    "reduce_scatter: column [2, 1], beside it [-6, -7]",
    "reduce_scatter_tensor: column [2, 2], beside it [-7, -7]",
    "broadcast: column [10, 1], beside it [20, -7]",
    "scatter: column [10, 1], beside it [20, -7]",
    "all_to_all_single: column [10, 1], beside it [20, -7]",
    "all_gather: column [10, 20], beside it [-7, -7]",
]
sys.exit(not root and seen != expected)
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
