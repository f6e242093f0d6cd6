#!/usr/bin/env bash
# flax 0.12.8: `msgpack_serialize` and `to_bytes` of NumPy arrays whose bytes are in the other order
# than the machine's (">f4") write the bytes and a type without the order. They come back as other
# numbers, without an error: 1.0 as 4.6e-41, the integer 1 as 2**56.
#
# Arrays read from netCDF, FITS or IDX files and from network formats have this order on all usual
# machines. `numpy.save` keeps the order, and JAX converts such arrays when it takes them.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), of 0, 1, 2:
#   >f4: [0.0, 4.600602988224807e-41, 8.96831017167883e-44]
#   >i8: [0, 72057594037927936, 144115188075855872]
#   <f4: [0.0, 1.0, 2.0]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  flax==0.12.8 jax==0.10.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
from flax.serialization import msgpack_restore, msgpack_serialize

expected = {
    ">f4": [0.0, 4.600602988224807e-41, 8.96831017167883e-44],
    ">i8": [0, 2**56, 2**57],
    "<f4": [0.0, 1.0, 2.0],
}
seen = {}
for dtype in expected:
    restored = msgpack_restore(msgpack_serialize({"x": np.arange(3, dtype=dtype)}))
    seen[dtype] = restored["x"].tolist()
    print(f"{dtype}: {seen[dtype]}")
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
