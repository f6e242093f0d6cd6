"""Gradients of data-parallel training with optax."""

from __future__ import annotations

from typing import Any

from gradred.errors import explain
from gradred.jax.collectives import pmean_tree


def pmean_gradients(*, name: str | None = None) -> Any:
    """Make an optax transformation that averages the gradients of all ranks.

    Put it first: `optax.chain(gradred.jax.pmean_gradients(), optax.adam(1e-3))`.

    Args:
        name: see `gradred.jax.allreduce`.

    Returns:
        An `optax.GradientTransformation` without a state.

    Raises:
        ModuleNotFoundError: optax is not installed.
    """
    try:
        import optax
    except ModuleNotFoundError as error:
        if error.name != "optax":
            raise
        found, remedy = "optax is not installed", "Install it with pip install optax"
        text = explain("gradred.jax.pmean_gradients", found, remedy)
        raise ModuleNotFoundError(text, name="optax") from None

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return pmean_tree(updates, name=name), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)
