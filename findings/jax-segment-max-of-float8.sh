#!/usr/bin/env bash
# JAX 0.10.2: `jax.ops.segment_max` and `segment_min` of float8_e4m3fn are NaN for every segment,
# whatever the numbers. So it is with all float8 types without infinity. `softmax` of them is NaN
# too. No error is raised. `jnp.max` of the same numbers is right, and so is everything in
# float8_e5m2, which has infinities.
#
# A segment's maximum begins with -inf, and these types have NaN in its place: NaN is larger than
# all. The documentation names no types that the function does not take.
#
# Seen on CPUs (x86-64, Python 3.11), of -1 and 2 in one segment:
#   float8_e4m3fn: segment_max nan, segment_min nan, softmax [nan, nan], max 2.0
#   float8_e4m3fnuz: segment_max nan, segment_min nan, softmax [nan, nan], max 2.0
#   float8_e5m2fnuz: segment_max nan, segment_min nan, softmax [nan, nan], max 2.0
#   float8_e5m2: segment_max 2.0, segment_min -1.0, softmax [0.046875, 1.0], max 2.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
KINDS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e5m2")


def number(x):
    return float(jnp.squeeze(x).astype(jnp.float32))


seen = []
for kind in KINDS:
    x = jnp.array([-1, 2], getattr(jnp, kind))
    segment = jnp.zeros(2, jnp.int32)
    largest = number(jax.ops.segment_max(x, segment, 1))
    smallest = number(jax.ops.segment_min(x, segment, 1))
    softmax = [number(share) for share in jax.nn.softmax(x)]
    seen.append(
        f"{kind}: segment_max {largest}, segment_min {smallest}, softmax {softmax}, "
        f"max {number(x.max())}"
    )
print(*seen, sep="\n")
nothing = "segment_max nan, segment_min nan, softmax [nan, nan], max 2.0"
expected = [f"{kind}: {nothing}" for kind in KINDS[:3]]
expected.append("float8_e5m2: segment_max 2.0, segment_min -1.0, softmax [0.046875, 1.0], max 2.0")
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
