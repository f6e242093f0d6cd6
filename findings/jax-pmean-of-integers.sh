#!/usr/bin/env bash
# JAX 0.10.2: `lax.pmean` of integers adds in the input's type, wraps around, and then divides: it
# returns floats that are not the mean. `jnp.mean` of the same numbers adds as floats and is right.
#
# Two bytes of 100 have a mean of -28.0. Integers of 32 bits, the usual type of counters, wrap too.
#
# Seen with 2 CPU devices (x86-64, Python 3.11), both devices with the same number:
#   int8 100: pmean -28.0, mean 100.0
#   uint8 200: pmean 72.0, mean 200.0
#   int32 1073741824: pmean -1073741824.0, mean 1073741824.0
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
from jax.sharding import Mesh, PartitionSpec

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
mesh = Mesh(np.array(jax.devices()), ("device",))
pmean = jax.jit(
    jax.shard_map(
        lambda x: jax.lax.pmean(x, "device"),
        mesh=mesh,
        in_specs=PartitionSpec("device"),
        out_specs=PartitionSpec(),
    )
)
seen = []
for kind, number in (("int8", 100), ("uint8", 200), ("int32", 2**30)):
    x = jnp.array([number, number], kind)
    seen.append((float(pmean(x)[0]), float(jnp.mean(x))))
    print(f"{kind} {number}: pmean {seen[-1][0]}, mean {seen[-1][1]}")
sys.exit(seen != [(-28.0, 100.0), (72.0, 200.0), (-(2.0**30), 2.0**30)])
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
