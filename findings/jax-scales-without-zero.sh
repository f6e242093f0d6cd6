#!/usr/bin/env bash
# JAX 0.10.2: the maximum, the minimum and the sum of numbers of float8_e8m0fnu, the type of scales
# of the MX formats, are NaN, whatever the numbers, and `argmax` is 0. No error is raised. If the
# same array is spread over two devices, one number each, the first three are right.
#
# The type has powers of two only, no zero and no infinity. A reduction begins with one of these,
# which becomes NaN. `jnp.maximum` and `top_k` are right, too, and so is NumPy's maximum of this
# type, which comes from ml_dtypes.
#
# Who looks for the largest scale of a tensor finds NaN, or takes the first block for it.
#
# Seen on CPUs (x86-64, Python 3.11), of 0.25 and 0.5:
#   one device: max nan, min nan, sum nan, argmax 0
#   two devices: max 0.5, min 0.25, sum 1.0, argmax 0
#   maximum 0.5, top_k 0.5, NumPy's max 0.5
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
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)


def number(x):
    return np.asarray(x).astype(np.float32).item()


def reductions(x):
    floats = (f"{call.__name__} {number(call(x))}" for call in (jnp.max, jnp.min, jnp.sum))
    return ", ".join([*floats, f"argmax {int(jnp.argmax(x))}"])


scales = jnp.array([0.25, 0.5], jnp.float8_e8m0fnu)
mesh = Mesh(np.array(jax.devices()), ("device",))
spread = jax.device_put(scales, NamedSharding(mesh, PartitionSpec("device")))
seen = [
    f"one device: {reductions(scales)}",
    f"two devices: {reductions(spread)}",
    f"maximum {number(jnp.maximum(*scales))}, top_k {number(jax.lax.top_k(scales, 1)[0])}, "
    f"NumPy's max {number(np.asarray(scales).max())}",
]
print(*seen, sep="\n")
expected = [
    "one device: max nan, min nan, sum nan, argmax 0",
    "two devices: max 0.5, min 0.25, sum 1.0, argmax 0",
    "maximum 0.5, top_k 0.5, NumPy's max 0.5",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
