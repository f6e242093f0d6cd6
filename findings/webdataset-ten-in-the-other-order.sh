#!/usr/bin/env bash
# webdataset 1.0.2: an array of the other byte order (">f4", as files of FITS, HDF5 or netCDF often
# give) written with the extension "ten" is read back as other numbers: its bytes are kept in its
# order, and the name of its type without it. No error is raised, though types that the format does
# not know (uint32) are refused when they are written. The extension "npy" gives the right numbers.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6):
#   ten <i4 [1, 2, 3] -> int32 [1, 2, 3]
#   ten >i4 [1, 2, 3] -> int32 [16777216, 33554432, 50331648]
#   ten >i8 [1, 2, 3] -> int64 [72057594037927936, 144115188075855872, 216172782113783808]
#   ten >f4 [1, 2, 3] -> float32 not the same
#   ten >f8 [1, 2, 3] -> float64 not the same
#   npy >i4 [1, 2, 3] -> >i4 [1, 2, 3]
#   ten uint32 [1, 2, 3] -> ValueError
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check webdataset==1.0.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys
import tempfile

import numpy as np
import webdataset


def read_back(kind, x):
    with tempfile.TemporaryDirectory() as folder:
        name = f"{folder}/shard.tar"
        with webdataset.TarWriter(name) as writer:
            writer.write({"__key__": "0", kind: [x] if kind == "ten" else x})
        [sample] = webdataset.WebDataset(name, shardshuffle=False).decode()
        return sample[kind][0] if kind == "ten" else sample[kind]


def line(kind, dtype):
    x = np.array([1, 2, 3], dtype)
    try:
        y = read_back(kind, x)
    except ValueError as error:
        return f"{kind} {dtype} {[1, 2, 3]} -> {type(error).__name__}"
    numbers = y.tolist() if x.dtype.kind == "i" else "the same" if (x == y).all() else "not the same"
    return f"{kind} {dtype} {[1, 2, 3]} -> {y.dtype} {numbers}"


seen = [
    line("ten", "<i4"),
    line("ten", ">i4"),
    line("ten", ">i8"),
    line("ten", ">f4"),
    line("ten", ">f8"),
    line("npy", ">i4"),
    line("ten", "uint32"),
]
print(*seen, sep="\n")
expected = [
    "ten <i4 [1, 2, 3] -> int32 [1, 2, 3]",
    "ten >i4 [1, 2, 3] -> int32 [16777216, 33554432, 50331648]",
    "ten >i8 [1, 2, 3] -> int64 [72057594037927936, 144115188075855872, 216172782113783808]",
    "ten >f4 [1, 2, 3] -> float32 not the same",
    "ten >f8 [1, 2, 3] -> float64 not the same",
    "npy >i4 [1, 2, 3] -> >i4 [1, 2, 3]",
    "ten uint32 [1, 2, 3] -> ValueError",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
