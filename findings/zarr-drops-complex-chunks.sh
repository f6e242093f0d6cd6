#!/usr/bin/env bash
# zarr 3.1.6: a chunk of complex numbers is not written, and is read back as the fill value, if its
# numbers only compare equal to it: with the fill value NaN all numbers of which one part is NaN
# lose the other part, and with the default 0 they lose the signs of zeros. No error is raised. For
# real numbers zarr keeps the sign of zero, and with write_empty_chunks=True everything is right.
#
# The comparison takes a complex number for NaN if one of its parts is. NaN is the usual fill value
# of arrays with missing numbers. Whether a number is kept depends on what else is in its chunk.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), chunks of two numbers:
#   fill nan: wrote 5+nanj 7+nanj, read nan+0j nan+0j
#   fill nan: wrote 5+nanj 1+0j, read 5+nanj 1+0j
#   fill 0: wrote -0-0j -0-0j, read 0+0j 0+0j
#   fill nan, write_empty_chunks: wrote 5+nanj 7+nanj, read 5+nanj 7+nanj
#   fill 0, float64: wrote -0 -0, read -0 -0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check zarr==3.1.6 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import numpy as np
import zarr

nan = float("nan")


def written_and_read(fill, numbers, dtype="complex128", **config):
    array = zarr.create_array(
        zarr.storage.MemoryStore(), shape=2, chunks=2, dtype=dtype, fill_value=fill, config=config
    )
    array[:] = np.array(numbers, dtype)
    texts = []
    for values in (np.array(numbers, dtype), array[:]):
        texts.append(
            " ".join(f"{x:g}" if dtype == "float64" else f"{x.real:g}{x.imag:+g}j" for x in values)
        )
    return "wrote {}, read {}".format(*texts)


lost = [complex(5, nan), complex(7, nan)]
zeros = [complex(-0.0, -0.0)] * 2
seen = [
    f"fill nan: {written_and_read(nan, lost)}",
    f"fill nan: {written_and_read(nan, [lost[0], 1])}",
    f"fill 0: {written_and_read(0, zeros)}",
    f"fill nan, write_empty_chunks: {written_and_read(nan, lost, write_empty_chunks=True)}",
    f"fill 0, float64: {written_and_read(0, [-0.0, -0.0], 'float64')}",
]
print(*seen, sep="\n")
expected = [
    "fill nan: wrote 5+nanj 7+nanj, read nan+0j nan+0j",
    "fill nan: wrote 5+nanj 1+0j, read 5+nanj 1+0j",
    "fill 0: wrote -0-0j -0-0j, read 0+0j 0+0j",
    "fill nan, write_empty_chunks: wrote 5+nanj 7+nanj, read 5+nanj 7+nanj",
    "fill 0, float64: wrote -0 -0, read -0 -0",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
