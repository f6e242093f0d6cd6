#!/usr/bin/env bash
# litdata 0.2.76: `optimize` of samples that are lists of different lengths gives all the length of
# the first: a longer one loses its end, a shorter one gets a zero, without an error. Dictionaries
# of different keys all get the keys of the first, and 0 for what they lack; what has another key is
# lost.
#
# A sample {"ids": [...]} with a list of any length as its value comes back as it was. With pyarrow
# installed, which litdata does not require, missing keys come back as None and none is lost; the
# lists are cut all the same.
#
# Seen (Python 3.11, PyTorch 2.13.0, NumPy 2.4.6):
#   [1, 2], [3], [4, 5, 6] -> [1, 2], [3, 0], [4, 5]
#   {'ids': [1, 2]}, {'ids': [4, 5, 6]} -> {'ids': [1, 2]}, {'ids': [4, 5, 6]}
#   {'a': 1}, {'b': 2} -> {'a': 1}, {'a': 0}
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 litdata==0.2.76 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys
import tempfile

from litdata import StreamingDataset, optimize

SAMPLES = [
    [[1, 2], [3], [4, 5, 6]],
    [{"ids": [1, 2]}, {"ids": [4, 5, 6]}],
    [{"a": 1}, {"b": 2}],
]


def same(sample):
    return sample


def read_back(samples):
    with tempfile.TemporaryDirectory() as folder:
        optimize(same, samples, folder, num_workers=1, chunk_bytes="1MB", verbose=False)
        dataset = StreamingDataset(folder)
        return [dataset[i] for i in range(len(samples))]


def text(samples):
    return ", ".join(map(str, samples))


if __name__ == "__main__":
    seen = [f"{text(samples)} -> {text(read_back(samples))}" for samples in SAMPLES]
    print(*seen, sep="\n")
    expected = [
        "[1, 2], [3], [4, 5, 6] -> [1, 2], [3, 0], [4, 5]",
        "{'ids': [1, 2]}, {'ids': [4, 5, 6]} -> {'ids': [1, 2]}, {'ids': [4, 5, 6]}",
        "{'a': 1}, {'b': 2} -> {'a': 1}, {'a': 0}",
    ]
    sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
