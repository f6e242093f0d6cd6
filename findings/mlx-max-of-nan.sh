#!/usr/bin/env bash
# MLX 0.32.4: `mx.distributed.all_max` and `all_min` lose a NaN or keep it by its place in the array
# and the rank it comes from. `mx.maximum` of the same two arrays is NaN wherever one of them is.
#
# Which NaN is lost differs between the halves of the array: the ring reduces each half on another
# rank, and the comparison depends on the order of its arguments. So a job that stops when the
# largest loss is NaN stops only for some losses.
#
# Seen on 2 ranks (backend ring, x86-64, Python 3.11); rank 0 has NaN in places 0, 2, 4 and 6, rank
# 1 in the others, and 1 in all the rest, so that all maxima must be NaN:
#   all_max: [1.0, nan, 1.0, nan, nan, 1.0, nan, 1.0]
#   maximum: [nan, nan, nan, nan, nan, nan, nan, nan]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check "mlx[cpu]==0.32.4"
cat > "$folder/program.py" <<'PROGRAM'
import mlx.core as mx

mx.set_default_device(mx.cpu)
rank = mx.distributed.init(strict=True, backend="ring").rank()
one, other = (mx.array([float("nan") if i % 2 == k else 1.0 for i in range(8)]) for k in (0, 1))
reduced = mx.distributed.all_max(one if rank == 0 else other)
print(f"all_max: {reduced.tolist()}\nmaximum: {mx.maximum(one, other).tolist()}", flush=True)
PROGRAM
"$folder/env/bin/mlx.launch" -n 2 --backend ring -- \
  "$folder/env/bin/python" "$folder/program.py" > "$folder/output" 2>&1
sort -u "$folder/output"
[ "$(grep -cxF 'all_max: [1.0, nan, 1.0, nan, nan, 1.0, nan, 1.0]' "$folder/output")" = 2 ]
[ "$(grep -cxF "maximum: [$(printf 'nan, %.0s' 1 2 3 4 5 6 7)nan]" "$folder/output")" = 2 ]
