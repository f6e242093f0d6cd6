#!/usr/bin/env bash
# optax 0.2.8 (JAX 0.10.2, CPU): `global_norm` of a tree of many arrays of bfloat16 stops growing:
# of a thousand arrays with a one each it is 16 instead of 31.6. `clip_by_global_norm(1)` of them
# leaves a norm of 2. float16 stops at 45.25. No error is raised. The norm of one array with the
# same numbers is right.
#
# The squares of one array are added in float32 and rounded to bfloat16, those of different arrays
# in bfloat16, one by one; 256 + 1 is 256 there. Biases and scales of a deep model are such arrays.
# `tree_sum` and `tree_vdot` of optax.tree stop at 256 in the same way.
#
# Seen (x86-64, Python 3.11), arrays of one number:
#   bfloat16, 1000 arrays: global_norm 16.0, norm after clipping 1.976, one array 31.625
#   float16, 4000 arrays: global_norm 45.25, norm after clipping 1.397, one array 63.25
#   bfloat16, 1000 arrays: tree_sum 256.0, tree_vdot 256.0
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
import numpy as np
import optax

jax.config.update("jax_platforms", "cpu")


def exact_norm(tree):
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(x, np.float64))) for x in tree)))


seen = []
clip = optax.clip_by_global_norm(1.0)
for kind, count in (("bfloat16", 1000), ("float16", 4000)):
    tree = [jnp.ones(1, kind)] * count
    clipped, _ = clip.update(tree, clip.init(tree))
    seen.append(
        f"{kind}, {count} arrays: global_norm {float(optax.global_norm(tree))}, "
        f"norm after clipping {exact_norm(clipped):.3f}, "
        f"one array {float(optax.global_norm(jnp.ones(count, kind)))}"
    )
tree = [jnp.ones(1, jnp.bfloat16)] * 1000
total = float(optax.tree_utils.tree_sum(tree))
product = float(optax.tree_utils.tree_vdot(tree, tree))
seen.append(f"bfloat16, 1000 arrays: tree_sum {total}, tree_vdot {product}")
print(*seen, sep="\n")
expected = [
    "bfloat16, 1000 arrays: global_norm 16.0, norm after clipping 1.976, one array 31.625",
    "float16, 4000 arrays: global_norm 45.25, norm after clipping 1.397, one array 63.25",
    "bfloat16, 1000 arrays: tree_sum 256.0, tree_vdot 256.0",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
