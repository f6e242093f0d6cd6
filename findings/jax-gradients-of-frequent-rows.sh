#!/usr/bin/env bash
# JAX 0.10.2 on CPUs: the gradient of a row that a program takes often stops growing in bfloat16: of
# a thousand uses with a gradient of 1 each it is 256. The same product with rows of one-hot vectors
# has the gradient 1000. `segment_sum` and `bincount` of a thousand ones are 256, too, where `sum`
# is 1000. No error is raised.
#
# 256 + 1 is 256 in bfloat16. Additions by index happen in the input's type, one by one; those of
# `sum` and of products are done in float32. So the frequent tokens of an embedding in bfloat16 get
# a small part of their gradient, before any rank adds to it. A value that is used in many places,
# such as the same weight in a `stack` or as a constant of a `scan`, ends at 256 as well.
#
# Seen (x86-64, Python 3.11), a thousand ones:
#   gradients: w[rows] 256.0, one_hot(rows) @ w 1000.0, scan 256.0, stack 256.0, broadcast_to 1000.0
#   sums: segment_sum 256.0, bincount 256.0, sum 1000.0
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
COUNT = 1000
rows = jnp.zeros(COUNT, jnp.int32)
ones = jnp.ones(COUNT, jnp.bfloat16)
USES = {
    "w[rows]": lambda w: w[rows],
    "one_hot(rows) @ w": lambda w: jax.nn.one_hot(rows, 1, dtype=w.dtype) @ w,
    "scan": lambda w: jax.lax.scan(lambda none, _: (none, w), None, None, length=COUNT)[1],
    "stack": lambda w: jnp.stack([w] * COUNT),
    "broadcast_to": lambda w: jnp.broadcast_to(w, (COUNT,)),
}
gradients = (
    f"{name} {float(jax.grad(lambda w: use(w).sum())(ones[:1])[0])}" for name, use in USES.items()
)
sums = {
    "segment_sum": jax.ops.segment_sum(ones, rows, 1)[0],
    "bincount": jnp.bincount(rows, weights=ones, length=1)[0],
    "sum": ones.sum(),
}
seen = [
    f"gradients: {', '.join(gradients)}",
    f"sums: {', '.join(f'{name} {float(total)}' for name, total in sums.items())}",
]
print(*seen, sep="\n")
expected = [
    "gradients: w[rows] 256.0, one_hot(rows) @ w 1000.0, scan 256.0, stack 256.0, "
    "broadcast_to 1000.0",
    "sums: segment_sum 256.0, bincount 256.0, sum 1000.0",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
