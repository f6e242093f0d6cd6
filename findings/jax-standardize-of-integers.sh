#!/usr/bin/env bash
# JAX 0.10.2: `jax.nn.standardize` of integers squares them in their type, which wraps around, and
# divides by the root of that: bytes of an image become thousands instead of numbers about 1. No
# error is raised. With algorithm="stable" the result is right.
#
# By its documentation it uses `x.var()` if no variance is given, and the variance of the same array
# is right.
#
# Seen (CPUs, Python 3.11), the first of four numbers; what it should be is 1:
#   int8 100, -100: 25.0, stable 1.0, variance 10000.0
#   int8 20, -20: 6324.6, stable 1.0, variance 400.0
#   uint8 200, 0: 31622.8, stable 1.0, variance 10000.0
#   int32 50000, -50000: 15811388.0, stable 1.0, variance 2500000000.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import jax
import jax.numpy as jnp

seen = []
for dtype, high, low in (
    ("int8", 100, -100),
    ("int8", 20, -20),
    ("uint8", 200, 0),
    ("int32", 50000, -50000),
):
    numbers = jnp.array([high, low, high, low], dtype)
    first, stable = (
        round(jax.nn.standardize(numbers, algorithm=algorithm)[0].item(), 1)
        for algorithm in ("fast", "stable")
    )
    assert first == round(jax.nn.standardize(numbers)[0].item(), 1)
    variance = numbers.var().item()
    seen.append(f"{dtype} {high}, {low}: {first}, stable {stable}, variance {variance}")
print(*seen, sep="\n")
documented = "x.var(" in jax.nn.standardize.__doc__
expected = [
    "int8 100, -100: 25.0, stable 1.0, variance 10000.0",
    "int8 20, -20: 6324.6, stable 1.0, variance 400.0",
    "uint8 200, 0: 31622.8, stable 1.0, variance 10000.0",
    "int32 50000, -50000: 15811388.0, stable 1.0, variance 2500000000.0",
]
sys.exit(not documented or seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
