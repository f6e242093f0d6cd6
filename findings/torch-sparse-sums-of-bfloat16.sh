#!/usr/bin/env bash
# PyTorch 2.13.0 on CPUs: some sums of bfloat16 by index stop at 256: a thousand ones add up to 256
# in `coalesce()` of a sparse tensor, in `segment_reduce` and in `index_add_`. float16 stops at
# 2048. No error is raised. `sum` and `scatter_add_` of the same numbers are right.
#
# Each addition is rounded to the type, where 256 + 1 is 256. A sparse gradient of an embedding is
# such a sum, with one addition for each use of a word in a batch.
#
# Seen (Python 3.11, CPU build), 1000 ones in bfloat16, 4000 in float16:
#   bfloat16: coalesce 256, segment_reduce 256, index_add_ 256, scatter_add_ 1000, sum 1000
#   float16: coalesce 2048, segment_reduce 2048, index_add_ 2048, scatter_add_ 4000, sum 4000
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import torch

seen = []
for dtype, count in ((torch.bfloat16, 1000), (torch.float16, 4000)):
    ones, places = torch.ones(count, dtype=dtype), torch.zeros(count, dtype=torch.long)
    zero = torch.zeros(1, dtype=dtype)
    sparse = torch.sparse_coo_tensor(places[None], ones, (1,), check_invariants=True)
    sums = {
        "coalesce": sparse.coalesce().values(),
        "segment_reduce": torch.segment_reduce(ones, "sum", lengths=torch.tensor([count])),
        "index_add_": zero.clone().index_add_(0, places, ones),
        "scatter_add_": zero.clone().scatter_add_(0, places, ones),
        "sum": ones.sum(),
    }
    name = str(dtype).removeprefix("torch.")
    seen.append(f"{name}: {', '.join(f'{call} {int(x)}' for call, x in sums.items())}")
print(*seen, sep="\n")
expected = [
    "bfloat16: coalesce 256, segment_reduce 256, index_add_ 256, scatter_add_ 1000, sum 1000",
    "float16: coalesce 2048, segment_reduce 2048, index_add_ 2048, scatter_add_ 4000, sum 4000",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
