"""Collectives inside JAX programs: under jit, grad, vmap, scan and checkpoint, without tokens.

docs/jax.md shows how to use them. No other module of gradred imports JAX.
"""

from gradred.errors import refuse_missing as _refuse_missing

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    _refuse_missing(error, "jax", "JAX")

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
