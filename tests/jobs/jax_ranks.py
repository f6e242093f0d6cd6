"""One rank of a JAX program of two, of which rank 1 does something else: `jax_ranks.py HOW`.

Rank 0 prints a line of JSON with the error that it got and the seconds until then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import jax
import jax.numpy as jnp

import gradred.jax as collectives

HOW = sys.argv[1]
RANK = collectives.rank()


@jax.jit
def program(x: jax.Array) -> jax.Array:
    return collectives.allreduce(x * 2.0, name="program")


def trouble() -> None:
    """Do on rank 1 what HOW says."""
    if HOW == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "raises":
        raise RuntimeError("a mistake of rank 1")
    if HOW == "exits":
        sys.exit(0)
    if HOW == "never calls":
        time.sleep(9)
        os._exit(0)
    if HOW == "calls another":
        collectives.allreduce(jnp.ones(3), name="another").block_until_ready()


def main() -> None:
    assert float(program(jnp.ones(4))[0]) == 4.0
    if HOW == "not waited for after an error of a notebook":
        sys.ps1, sys.last_value = "In : ", ValueError("of a cell")  # type: ignore[assignment]
    if HOW.startswith("not waited for"):
        # One rank dispatches and ends at once, the other comes late.
        if RANK == 1:
            time.sleep(1)
        result = program(jnp.full(1 << 16, RANK + 1.0))
        if RANK == 1:
            print(json.dumps({"result": float(result[7])}), flush=True)
        return
    if RANK == 1:
        time.sleep(0.3)
        trouble()
    begin = time.monotonic()
    try:
        program(jnp.ones(4)).block_until_ready()
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX has both (docs/jax.md)
        found = {"text": str(error), "seconds": time.monotonic() - begin}
        print(json.dumps(found), flush=True)
        raise


if __name__ == "__main__":
    main()
