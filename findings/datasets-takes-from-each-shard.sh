#!/usr/bin/env bash
# datasets 5.2.0: `take(n)` and `skip(n)` of an iterable dataset mean other examples once
# `split_dataset_by_node` has given its shards to the nodes: each shard takes or skips its part of
# n. The nodes together get examples that are not among the first n and lack some that are; and
# examples that were skipped come back. So an example kept for validation by `take` on one node
# also is in the training by `skip` on several. No error is raised; the documents say "only the
# first `n` elements" and "skips the first `n` elements".
#
# With strategy="examples", or fewer shards than nodes, each node gets its part of the right ones.
#
# Seen (Python 3.11), 12 examples, 0 to 11, in 4 shards of 3, with the examples of each node:
#   take(5), whole: [0, 1, 2, 3, 4]
#   take(5), 4 nodes: [0, 1] [3] [6] [9]
#   take(5), 4 nodes, by examples: [0, 4] [1] [2] [3]
#   skip(9), whole: [9, 10, 11]
#   skip(9), 4 nodes: [] [5] [8] [11]
#   skip(9), 4 nodes, by examples: [9] [10] [11] []
#   skip(5), 2 nodes: [6, 7, 8] [5, 9, 10, 11]
#   skip(1), 2 nodes: [1, 2, 6, 7, 8] [3, 4, 5, 9, 10, 11]
#   take(3), 2 nodes: [0, 1] [3]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HF_HOME=$folder/cache HF_HUB_OFFLINE=1
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

from datasets import Dataset
from datasets.distributed import split_dataset_by_node


def numbers():
    return Dataset.from_dict({"x": list(range(12))}).to_iterable_dataset(num_shards=4)


def values(dataset):
    return [example["x"] for example in dataset]


def line(name, count, nodes=1, strategy="auto"):
    some = getattr(numbers(), name)(count)
    if nodes == 1:
        return f"{name}({count}), whole: {values(some)}"
    parts = [
        values(split_dataset_by_node(some, rank, nodes, strategy=strategy))
        for rank in range(nodes)
    ]
    how = "" if strategy == "auto" else ", by examples"
    return f"{name}({count}), {nodes} nodes{how}: {' '.join(map(str, parts))}"


seen = [
    line("take", 5),
    line("take", 5, 4),
    line("take", 5, 4, "examples"),
    line("skip", 9),
    line("skip", 9, 4),
    line("skip", 9, 4, "examples"),
    line("skip", 5, 2),
    line("skip", 1, 2),
    line("take", 3, 2),
]
print(*seen, sep="\n")
expected = [
    "take(5), whole: [0, 1, 2, 3, 4]",
    "take(5), 4 nodes: [0, 1] [3] [6] [9]",
    "take(5), 4 nodes, by examples: [0, 4] [1] [2] [3]",
    "skip(9), whole: [9, 10, 11]",
    "skip(9), 4 nodes: [] [5] [8] [11]",
    "skip(9), 4 nodes, by examples: [9] [10] [11] []",
    "skip(5), 2 nodes: [6, 7, 8] [5, 9, 10, 11]",
    "skip(1), 2 nodes: [1, 2, 6, 7, 8] [3, 4, 5, 9, 10, 11]",
    "take(3), 2 nodes: [0, 1] [3]",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
