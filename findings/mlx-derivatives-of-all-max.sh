#!/usr/bin/env bash
# MLX 0.32.4: derivatives of `mx.distributed.all_max` are wrong without an error. Forward, the
# derivative is the largest derivative instead of that of the rank with the largest number.
# Backward, every rank gets the gradient, also where its number is not the largest. The same holds
# for all_min.
#
# `mx.max` of an array gives the derivatives of the largest element, and gradient 0 to the others.
#
# Seen on 2 ranks (backend ring, Python 3.11); rank 0 has [1, 2], rank 1 [2, 1], and their tangents
# are [1, 10] and [2, 20], so that forward [2, 10] is right, and backward [0, 1] and [1, 0]:
#   forward: [2.0, 20.0]
#   backward: rank 0 [1.0, 1.0], rank 1 [1.0, 1.0]
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
x = mx.array([1.0 + rank, 2.0 - rank])
tangent = mx.array([1.0, 10.0]) * (rank + 1)
_, forward = mx.jvp(mx.distributed.all_max, [x], [tangent])
backward = mx.grad(lambda x: mx.distributed.all_max(x).sum())(x)
print(f"rank {rank}: forward {forward[0].tolist()}, backward {backward.tolist()}", flush=True)
PROGRAM
"$folder/env/bin/mlx.launch" -n 2 --backend ring -- \
  "$folder/env/bin/python" "$folder/program.py" > "$folder/output" 2>&1
sort "$folder/output"
for rank in 0 1; do
  grep -qxF "rank $rank: forward [2.0, 20.0], backward [1.0, 1.0]" "$folder/output"
done
