#!/usr/bin/env bash
# JAX 0.10.2: `jnp.sum`, `jnp.prod`, `jnp.nansum` and `jnp.trace` of int4, uint4 and their kin of
# two bits raise a ValueError that names the type 'V'. The mean, the maximum, the running sum and
# the dot product of the same numbers work, and so does the sum with dtype=jnp.int32.
#
# The call looks for the size of the type in NumPy's table of integers, which does not have these
# types; `jnp.iinfo` has them. The running sum and the dot product stay in four bits and wrap
# around.
#
# Seen on CPUs (x86-64, Python 3.11, NumPy 2.4.6), of three sevens as int4:
#   sum ValueError, prod ValueError, nansum ValueError, sum(dtype=int32) 21
#   mean 7.0, max 7, cumsum [7, -2, 5], dot 3, iinfo(int4).bits 4
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
sevens = jnp.full(3, 7, jnp.int4)


def outcome(call):
    try:
        return str(int(call(sevens)))
    except ValueError as error:
        return type(error).__name__


failing = (f"{call.__name__} {outcome(call)}" for call in (jnp.sum, jnp.prod, jnp.nansum))
running = jnp.cumsum(sevens).astype(jnp.int32).tolist()
seen = [
    f"{', '.join(failing)}, sum(dtype=int32) {int(sevens.sum(dtype=jnp.int32))}",
    f"mean {float(sevens.mean())}, max {int(sevens.max())}, cumsum {running}, "
    f"dot {int(jnp.dot(sevens, sevens))}, iinfo(int4).bits {jnp.iinfo(jnp.int4).bits}",
]
print(*seen, sep="\n")
expected = [
    "sum ValueError, prod ValueError, nansum ValueError, sum(dtype=int32) 21",
    "mean 7.0, max 7, cumsum [7, -2, 5], dot 3, iinfo(int4).bits 4",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
