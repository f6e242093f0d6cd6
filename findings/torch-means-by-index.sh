#!/usr/bin/env bash
# PyTorch 2.13.0 on CPUs: means by index add in the numbers' type and divide then. `scatter_reduce`
# and `index_reduce` with "mean" of four times 100 as int8 are -28, and of float16 the mean is inf
# where the sum is larger than 65504, as it is in `embedding_bag`. No error is raised. `mean` of the
# same numbers in float16 is right, and refuses integers.
#
# `nanmean` and `torch.masked.mean`, which differ from `mean` only in what they leave out, are inf
# too.
#
# Seen (Python 3.11, CPU build), four times 100 as int8, eight times 30000 as float16:
#   int8: scatter_reduce -28, index_reduce -28
#   float16: scatter_reduce inf, index_reduce inf, embedding_bag inf, nanmean inf, masked.mean inf
#   float16: mean 30000.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys
import warnings

warnings.simplefilter("ignore")  # index_reduce is said to be in beta

import torch


def by_index(name, numbers):
    places = torch.zeros(len(numbers), dtype=torch.long)
    call = getattr(torch.zeros(1, dtype=numbers.dtype), name)
    return call(0, places, numbers, "mean", include_self=False)


def in_bag(numbers):
    weight, first = numbers[:1, None], torch.tensor([0])
    rows = torch.zeros(len(numbers), dtype=torch.long)
    return torch.nn.functional.embedding_bag(rows, weight, first, mode="mean")


small = torch.full((4,), 100, dtype=torch.int8)
half = torch.full((8,), 30000, dtype=torch.float16)
names = ("scatter_reduce", "index_reduce")
means = {name: by_index(name, half) for name in names}
means["embedding_bag"] = in_bag(half)
means["nanmean"] = torch.nanmean(half)
means["masked.mean"] = torch.masked.mean(half, mask=torch.ones(8, dtype=torch.bool))
seen = [
    f"int8: {', '.join(f'{name} {by_index(name, small).item()}' for name in names)}",
    f"float16: {', '.join(f'{name} {mean.item()}' for name, mean in means.items())}",
    f"float16: mean {half.mean().item()}",
]
print(*seen, sep="\n")
expected = [
    "int8: scatter_reduce -28, index_reduce -28",
    f"float16: {', '.join(f'{name} inf' for name in means)}",
    "float16: mean 30000.0",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
