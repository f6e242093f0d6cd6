#!/usr/bin/env bash
# Dask 2026.8.0 and xarray 2026.9.0: the mean of float16 is inf where the sum is larger than 65504,
# the largest number of the type. No error is raised. NumPy's mean of the same numbers is right.
#
# The documentation of `dask.array.mean` says, in the text it takes from NumPy, that results of
# float16 are computed by way of float32. Dask adds in float16 and divides then, also in one chunk.
# xarray does so by default; with skipna=False it has NumPy compute the mean of arrays in memory.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), the mean of eight times 30000 as float16:
#   NumPy: mean 30000.0
#   Dask, chunks of 8: mean inf, with dtype=float32 30000.0
#   Dask, chunks of 2: mean inf, with dtype=float32 30000.0
#   xarray: mean inf, with skipna=False 30000.0
#   xarray, chunks of 2: mean inf, with skipna=False inf
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  "dask[array]==2026.8.0" xarray==2026.9.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys
import warnings

import dask
import dask.array as da
import numpy as np
import xarray as xr

warnings.simplefilter("ignore")  # of the overflow
dask.config.set(scheduler="synchronous")
numbers = np.full(8, 30000, np.float16)
seen = [f"NumPy: mean {np.mean(numbers)}"]
for count in (8, 2):
    chunks = da.from_array(numbers, count)
    mean, other = dask.compute(chunks.mean(), chunks.mean(dtype=np.float32))
    seen.append(f"Dask, chunks of {count}: mean {mean}, with dtype=float32 {other}")
array = xr.DataArray(numbers, dims="x")
for name, one in (("xarray", array), ("xarray, chunks of 2", array.chunk(x=2))):
    mean, other = one.mean().values, one.mean(skipna=False).values
    seen.append(f"{name}: mean {mean}, with skipna=False {other}")
print(*seen, sep="\n")
documented = "float32" in da.mean.__doc__ and "float16" in da.mean.__doc__
expected = [
    "NumPy: mean 30000.0",
    "Dask, chunks of 8: mean inf, with dtype=float32 30000.0",
    "Dask, chunks of 2: mean inf, with dtype=float32 30000.0",
    "xarray: mean inf, with skipna=False 30000.0",
    "xarray, chunks of 2: mean inf, with skipna=False inf",
]
sys.exit(not documented or seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
