#!/usr/bin/env bash
# optax 0.2.8: `clip_by_global_norm` and `clip_by_block_rms` set gradients of float16 to zero, all
# of them, where a square is larger than 65504: a gradient of 300 is enough. No error is raised,
# and nothing is NaN or infinite, so `apply_if_finite` and `zero_nans` find nothing. float32 and
# bfloat16 are clipped.
#
# The norm is taken in the gradients' type; it is inf, and the gradients are divided by it. Where a
# loss is scaled for float16, gradients are that large, and those steps leave the parameters as
# they were.
#
# Seen (JAX 0.10.2 on CPUs, Python 3.11), four gradients of 300 clipped to a norm or RMS of 1:
#   float16: norm inf, by norm [0.0, 0.0, 0.0, 0.0], by RMS [0.0, 0.0, 0.0, 0.0]
#   bfloat16: norm 600.0, by norm [0.5, 0.5, 0.5, 0.5], by RMS [1.0, 1.0, 1.0, 1.0]
#   float32: norm 600.0, by norm [0.5, 0.5, 0.5, 0.5], by RMS [1.0, 1.0, 1.0, 1.0]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  optax==0.2.8 jax==0.10.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import jax.numpy as jnp
import optax

seen = []
for dtype in ("float16", "bfloat16", "float32"):
    gradients = {"a": jnp.full(4, 300, dtype)}
    clipped = []
    for rule in (optax.clip_by_global_norm(1.0), optax.clip_by_block_rms(1.0)):
        updates, _ = rule.update(gradients, rule.init(gradients))
        clipped.append(updates["a"].astype(jnp.float32).round(2).tolist())
    norm = float(optax.global_norm(gradients))
    seen.append("{}: norm {}, by norm {}, by RMS {}".format(dtype, norm, *clipped))
print(*seen, sep="\n")
zeros, halves, ones = [0.0] * 4, [0.5] * 4, [1.0] * 4
expected = [
    f"float16: norm inf, by norm {zeros}, by RMS {zeros}",
    f"bfloat16: norm 600.0, by norm {halves}, by RMS {ones}",
    f"float32: norm 600.0, by norm {halves}, by RMS {ones}",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
