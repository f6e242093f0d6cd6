#!/usr/bin/env bash
# polars 2.1.0: `mean_horizontal` of small integers adds in their type, wraps around and then
# divides: the mean of 100 and 100 as Int8 is -28.0. That of float16 is inf where the sum is larger
# than 65504. No error is raised. `mean` of the same numbers in one column is right.
#
# The result has a type that has room for the mean (Float64 for integers). Its documentation does
# not speak of the type of the sum; `sum` turns small integers into Int64, to prevent this.
#
# Tables with one column per rank or per repetition are averaged by this call.
#
# Seen (x86-64, Python 3.11):
#   Int8 100, 100: mean_horizontal -28.0, mean 100.0
#   UInt8 200, 200: mean_horizontal 72.0, mean 200.0
#   Int32 2147483647, 1: mean_horizontal -1073741824.0, mean 1073741824.0
#   Float16 40000, 40000: mean_horizontal inf, mean 40000.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0
cat > "$folder/program.py" <<'PROGRAM'
import sys

import polars as pl

expected = {
    (pl.Int8, 100, 100): (-28.0, 100.0),
    (pl.UInt8, 200, 200): (72.0, 200.0),
    (pl.Int32, 2147483647, 1): (-1073741824.0, 1073741824.0),
    (pl.Float16, 40000, 40000): (float("inf"), 40000.0),
}
changed = False
for (dtype, first, second), (across, right) in expected.items():
    columns = pl.DataFrame({"a": [first], "b": [second]}, schema={"a": dtype, "b": dtype})
    horizontal = columns.mean_horizontal().item()
    mean = pl.Series([first, second], dtype=dtype).mean()
    print(f"{dtype} {first}, {second}: mean_horizontal {horizontal}, mean {mean}")
    changed |= (horizontal, mean) != (across, right)
sys.exit(changed)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
