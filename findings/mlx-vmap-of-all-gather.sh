#!/usr/bin/env bash
# MLX 0.32.4: `mx.vmap` of `mx.distributed.all_gather` returns an array of another shape than the
# same calls in a loop: it gathers along the mapped axis instead of along each row. all_sum is
# right.
#
# Seen on 2 ranks (backend ring, Python 3.11), each with 2 rows of 3 numbers:
#   all_gather of each row, stacked: (2, 6)
#   vmap of all_gather: (4, 3)
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
x = mx.arange(6.0).reshape(2, 3) + 10 * rank
stacked = mx.stack([mx.distributed.all_gather(row) for row in x])
mapped = mx.vmap(mx.distributed.all_gather)(x)
mx.eval(stacked, mapped)
print(f"all_gather of each row, stacked: {stacked.shape}", flush=True)
print(f"vmap of all_gather: {mapped.shape}", flush=True)
PROGRAM
"$folder/env/bin/mlx.launch" -n 2 --backend ring -- \
  "$folder/env/bin/python" "$folder/program.py" > "$folder/output" 2>&1
sort -u "$folder/output"
[ "$(grep -cxF 'all_gather of each row, stacked: (2, 6)' "$folder/output")" = 2 ]
[ "$(grep -cxF 'vmap of all_gather: (4, 3)' "$folder/output")" = 2 ]
