#!/usr/bin/env bash
# datasets 5.0.1: the indices that `map` and `filter` of an IterableDataset give to their function
# (with_indices=True) begin with 0 again on each rank, once `split_dataset_by_node` has split it. So
# it is if the number of shards is a multiple of that of ranks; otherwise the indices are those of
# the whole. No error is raised.
#
# A filter that keeps the first five samples of ten keeps all on two ranks, and every third for a
# test set is another third. Two samples have the same index as their name. `take(5)` counts samples
# of the whole.
#
# Seen (Python 3.11), ten samples, 2 ranks:
#   2 shards: indices [0, 1, 2, 3, 4] and [0, 1, 2, 3, 4]
#   2 shards: index < 5 keeps [0, 1, 2, 3, 4] and [5, 6, 7, 8, 9]
#   1 shards: indices [0, 2, 4, 6, 8] and [1, 3, 5, 7, 9]
#   1 shards: index < 5 keeps [0, 2, 4] and [1, 3]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check datasets==5.0.1
cat > "$folder/program.py" <<'PROGRAM'
import sys

import datasets
from datasets import Dataset
from datasets.distributed import split_dataset_by_node

datasets.disable_progress_bars()
samples = Dataset.from_dict({"x": list(range(10))})


def by_rank(dataset, column):
    parts = (split_dataset_by_node(dataset, rank, 2) for rank in range(2))
    return " and ".join(str([row[column] for row in part]) for part in parts)


seen = []
for shards in (2, 1):
    whole = samples.to_iterable_dataset(num_shards=shards)
    indexed = whole.map(lambda row, index: {"index": index}, with_indices=True)
    first = whole.filter(lambda row, index: index < 5, with_indices=True)
    seen.append(f"{shards} shards: indices {by_rank(indexed, 'index')}")
    seen.append(f"{shards} shards: index < 5 keeps {by_rank(first, 'x')}")
print(*seen, sep="\n")
expected = [
    "2 shards: indices [0, 1, 2, 3, 4] and [0, 1, 2, 3, 4]",
    "2 shards: index < 5 keeps [0, 1, 2, 3, 4] and [5, 6, 7, 8, 9]",
    "1 shards: indices [0, 2, 4, 6, 8] and [1, 3, 5, 7, 9]",
    "1 shards: index < 5 keeps [0, 2, 4] and [1, 3]",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
