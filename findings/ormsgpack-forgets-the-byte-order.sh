#!/usr/bin/env bash
# ormsgpack 1.13.1 with OPT_SERIALIZE_NUMPY writes NumPy arrays whose bytes are in the other order
# than the machine's (">f4") as other numbers, without an error: 1.0 as 4.6e-41, the integer 1 as
# 16777216. orjson 3.13.0, whose option has the same name, refuses these arrays; a single number of
# such an array is right.
#
# Arrays read from netCDF, FITS or IDX files and from network formats have this order on all usual
# machines. Ranks that send their metrics or batches as MessagePack send other numbers.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), of 0, 1, 2:
#   >f4: ormsgpack [0.0, 4.600602988224807e-41, 8.96831017167883e-44], orjson TypeError
#   >i4: ormsgpack [0, 16777216, 33554432], orjson TypeError
#   >u2: ormsgpack [0, 256, 512], orjson TypeError
#   <f4: ormsgpack [0.0, 1.0, 2.0], orjson [0.0, 1.0, 2.0]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  ormsgpack==1.13.1 orjson==3.13.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
import orjson
import ormsgpack


def by_json(x):
    try:
        return orjson.loads(orjson.dumps(x, option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:
        return type(error).__name__


def by_messagepack(x):
    return ormsgpack.unpackb(ormsgpack.packb(x, option=ormsgpack.OPT_SERIALIZE_NUMPY))


expected = {
    ">f4": ([0.0, 4.600602988224807e-41, 8.96831017167883e-44], "TypeError"),
    ">i4": ([0, 2**24, 2**25], "TypeError"),
    ">u2": ([0, 256, 512], "TypeError"),
    "<f4": ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0]),
}
seen = {}
for dtype in expected:
    x = np.arange(3, dtype=dtype)
    seen[dtype] = by_messagepack(x), by_json(x)
    print(f"{dtype}: ormsgpack {seen[dtype][0]}, orjson {seen[dtype][1]}")
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
