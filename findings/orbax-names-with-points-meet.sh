#!/usr/bin/env bash
# orbax-checkpoint 0.12.8: a tree that has an array "a.b" and an array "b" in "a" is saved without
# an error, and both come back with the value of one of them, from run to run of another. "a/b"
# beside them is right.
#
# The names of arrays in the checkpoint are the keys joined by points. Flat tables of parameters
# taken over from PyTorch have such keys ("encoder.weight"). If the two arrays differ in shape,
# `save` raises an error about the shape.
#
# Seen (JAX 0.10.2 on CPUs, Python 3.11), "a.b" is [1, 2], "b" in "a" is [3, 4], "a/b" is [5, 6]:
#   a.b [3, 4], a -> b [3, 4], a/b [5, 6]   in one run
#   a.b [1, 2], a -> b [1, 2], a/b [5, 6]   in another
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  orbax-checkpoint==0.12.8 jax==0.10.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import logging
import sys

logging.disable(logging.CRITICAL)

import numpy as np
import orbax.checkpoint as ocp

tree = {"a.b": np.array([1, 2]), "a": {"b": np.array([3, 4])}, "a/b": np.array([5, 6])}
with ocp.PyTreeCheckpointer() as checkpointer:
    checkpointer.save(f"{sys.argv[1]}/checkpoint", tree)
    restored = checkpointer.restore(f"{sys.argv[1]}/checkpoint")
flat, nested, other = (
    np.asarray(x).tolist() for x in (restored["a.b"], restored["a"]["b"], restored["a/b"])
)
print(f"a.b {flat}, a -> b {nested}, a/b {other}")
sys.exit(flat != nested or flat not in ([1, 2], [3, 4]) or other != [5, 6])
PROGRAM
"$folder/env/bin/python" "$folder/program.py" "$folder"
