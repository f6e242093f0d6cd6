#!/usr/bin/env bash
# JAX 0.10.2: `jnp.max` and `jnp.min` of an array that is spread over CPU devices lose NaN, without
# an error: the maximum of [nan, 1, 2, 3] is 3, that of NaN alone -inf. On one device both are NaN.
#
# `lax.pmax` and `lax.pmin` do the same, and so does what is computed by them, such as the largest
# norm: of NaN alone it is 0. `jnp.argmax` of the same array still points to the NaN, and `lax.pmax`
# below `vmap` keeps it. So a check of all gradients by their largest number finds nothing wrong as
# soon as they are spread.
#
# Seen with 4 CPU devices (x86-64, Python 3.11):
#   [nan, 1.0, 2.0, 3.0]
#     one device: max nan, min nan, norm nan, argmax 0; vmap of pmax nan
#     spread: max 3.0, min 1.0, norm 3.0, argmax 0; pmax 3.0
#   [nan, nan, nan, nan]
#     one device: max nan, min nan, norm nan, argmax 0; vmap of pmax nan
#     spread: max -inf, min inf, norm 0.0, argmax 0; pmax -inf
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = Mesh(np.array(jax.devices()), ("device",))


def pmax(x):
    return jax.lax.pmax(x, "device")


device = PartitionSpec("device")
spread_pmax = jax.jit(jax.shard_map(pmax, mesh=mesh, in_specs=device, out_specs=PartitionSpec()))


def numbers(x):
    found = f"max {jnp.max(x)}, min {jnp.min(x)}, norm {jnp.linalg.norm(x, jnp.inf)}"
    return f"{found}, argmax {jnp.argmax(x)}"


seen = []
for values in ([np.nan, 1.0, 2.0, 3.0], [np.nan] * 4):
    x = jnp.array(values)
    spread = jax.device_put(x, NamedSharding(mesh, device))
    vmap = jax.vmap(pmax, axis_name="device")(x)[0]
    seen += [
        f"{values}",
        f"  one device: {numbers(x)}; vmap of pmax {vmap}",
        f"  spread: {numbers(spread)}; pmax {spread_pmax(spread)[0]}",
    ]
print(*seen, sep="\n")
one = "  one device: max nan, min nan, norm nan, argmax 0; vmap of pmax nan"
expected = [
    "[nan, 1.0, 2.0, 3.0]",
    one,
    "  spread: max 3.0, min 1.0, norm 3.0, argmax 0; pmax 3.0",
    "[nan, nan, nan, nan]",
    one,
    "  spread: max -inf, min inf, norm 0.0, argmax 0; pmax -inf",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
