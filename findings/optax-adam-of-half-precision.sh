#!/usr/bin/env bash
# optax 0.2.8 (JAX 0.10.2, CPU): Adam of float16 makes NaN of a parameter whose gradient is 0, and
# infinity of one whose gradient is small, in the first step. With a gradient of 300 the parameter
# stays as it is. In bfloat16 the steps grow with time: by 35 percent in 3000 steps of the same
# gradient. No error is raised. In float32 each step is the learning rate.
#
# The square of a gradient is kept in the gradient's type, and the default eps of 1e-8 is 0 in
# float16. `mu_dtype` sets the type of the mean alone, and the mean of squares has no such setting.
# A row of an embedding that no token of the batch uses has a gradient of 0.
#
# Seen (x86-64, Python 3.11), the update before the learning rate, 1.0 by the method:
#   float16, first step: gradient 0.0 nan, 0.0001 inf, 1.0 1.0, 300.0 0.0
#   float32, first step: gradient 0.0 0.0, 0.0001 1.0, 1.0 1.0, 300.0 1.0
#   gradient 1.0, step 3000: bfloat16 1.35, bfloat16 with mu_dtype float32 1.38, float32 1.00
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import jax
import jax.numpy as jnp
import optax

jax.config.update("jax_platforms", "cpu")


def update(kind, gradient, steps, mu_dtype=None):
    adam = optax.scale_by_adam(mu_dtype=mu_dtype)
    gradients = jnp.full(1, gradient, kind)
    step = jax.jit(adam.update)
    state = adam.init(gradients)
    for _ in range(steps):
        updates, state = step(gradients, state)
    return float(updates[0])


seen = []
for kind in ("float16", "float32"):
    steps = (f"{number} {update(kind, number, 1):.1f}" for number in (0.0, 0.0001, 1.0, 300.0))
    seen.append(f"{kind}, first step: gradient {', '.join(steps)}")
late = {
    "bfloat16": update("bfloat16", 1.0, 3000),
    "bfloat16 with mu_dtype float32": update("bfloat16", 1.0, 3000, "float32"),
    "float32": update("float32", 1.0, 3000),
}
seen.append(
    f"gradient 1.0, step 3000: {', '.join(f'{name} {step:.2f}' for name, step in late.items())}"
)
print(*seen, sep="\n")
expected = [
    "float16, first step: gradient 0.0 nan, 0.0001 inf, 1.0 1.0, 300.0 0.0",
    "float32, first step: gradient 0.0 0.0, 0.0001 1.0, 1.0 1.0, 300.0 1.0",
    "gradient 1.0, step 3000: bfloat16 1.35, bfloat16 with mu_dtype float32 1.38, float32 1.00",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
