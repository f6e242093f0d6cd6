"""Collectives inside JAX programs: under jit, grad, vmap, scan and checkpoint, without tokens.

docs/jax.md shows how to use them. No other module of gradred imports JAX.
"""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    import sys

    from gradred.errors import explain

    text = explain(
        "import gradred.jax",
        f"this Python ({sys.executable}) has no JAX",
        "Install it, for example with pip install jax",
    )
    raise ModuleNotFoundError(text, name="jax") from None

from gradred.jax.collectives import (
    all_gather,
    all_to_all,
    allreduce,
    bcast,
    pmean_tree,
    reduce_scatter,
)
from gradred.jax.gradients import pmean_gradients
from gradred.jax.ranks import init, rank, size

__all__ = [
    "all_gather",
    "all_to_all",
    "allreduce",
    "bcast",
    "init",
    "pmean_gradients",
    "pmean_tree",
    "rank",
    "reduce_scatter",
    "size",
]
