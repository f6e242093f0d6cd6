#!/usr/bin/env bash
# Bottleneck 1.6.0: after one infinity all later means and sums of a moving window are NaN, also of
# windows that it has left. After one large number they are 0, and so is the standard deviation of 1
# and 2. No error is raised. `move_max` of the same numbers is right.
#
# The functions add the number that enters and subtract the one that leaves. xarray 2026.9.0 takes
# them for `rolling` if Bottleneck is installed; with use_bottleneck=False its sums are right.
#
# One loss or gradient norm that overflows hides the rest of a smoothed curve.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), windows of two numbers:
#   1, inf, 1, 2, 1: move_mean [nan, inf, inf, nan, nan]
#   1, inf, 1, 2, 1: rolling sum [nan, inf, inf, nan, nan], without [nan, inf, inf, 3.0, 3.0]
#   1, 1e+20, 1, 2, 1: move_mean [nan, 5e+19, 5e+19, 0.0, 0.0]
#   1, 1e+20, 1, 2, 1: move_std [nan, 5e+19, 5e+19, 0.0, 0.0]
#   1, 1e+20, 1, 2, 1: rolling sum [nan, 1e+20, 1e+20, 0.0, 0.0], without
#     [nan, 1e+20, 1e+20, 3.0, 3.0]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  bottleneck==1.6.0 xarray==2026.9.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import bottleneck as bn
import numpy as np
import xarray as xr


def rolling_sum(numbers, fast):
    with xr.set_options(use_bottleneck=fast):
        return xr.DataArray(numbers, dims="step").rolling(step=2).sum().values.tolist()


seen = []
for large in (np.inf, 1e20):
    numbers = np.array([1, large, 1, 2, 1])
    name = f"1, {large}, 1, 2, 1"
    seen.append(f"{name}: move_mean {bn.move_mean(numbers, 2).tolist()}")
    if large == 1e20:
        seen.append(f"{name}: move_std {bn.move_std(numbers, 2).tolist()}")
    sums = rolling_sum(numbers, True), rolling_sum(numbers, False)
    seen.append("{}: rolling sum {}, without {}".format(name, *sums))
print(*seen, sep="\n")
expected = [
    "1, inf, 1, 2, 1: move_mean [nan, inf, inf, nan, nan]",
    "1, inf, 1, 2, 1: rolling sum [nan, inf, inf, nan, nan], without [nan, inf, inf, 3.0, 3.0]",
    "1, 1e+20, 1, 2, 1: move_mean [nan, 5e+19, 5e+19, 0.0, 0.0]",
    "1, 1e+20, 1, 2, 1: move_std [nan, 5e+19, 5e+19, 0.0, 0.0]",
    "1, 1e+20, 1, 2, 1: rolling sum [nan, 1e+20, 1e+20, 0.0, 0.0], "
    "without [nan, 1e+20, 1e+20, 3.0, 3.0]",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
