"""The optax transformation trains like one process with the batches of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")

import jax
import jax.numpy as jnp
import optax

import gradred.jax as collectives


def test_training_equals_that_of_one_process(rank: int, size: int) -> None:
    keys = jax.random.split(jax.random.key(1), 3)
    images = jax.random.normal(keys[0], (size * 8, 5))
    labels = images @ jax.random.normal(keys[1], (5, 2))
    begin = {"w": jax.random.normal(keys[2], (5, 2)), "b": jnp.zeros(2)}

    def loss(weights: Any, images: Any, labels: Any) -> Any:
        return jnp.mean((images @ weights["w"] + weights["b"] - labels) ** 2)

    def trained(transformation: Any, images: Any, labels: Any) -> Any:
        @jax.jit
        def step(weights: Any, state: Any) -> Any:
            grads = jax.grad(loss)(weights, images, labels)
            updates, state = transformation.update(grads, state, weights)
            return optax.apply_updates(weights, updates), state

        weights, state = begin, transformation.init(begin)
        for _ in range(20):
            weights, state = step(weights, state)
        return weights

    own = slice(8 * rank, 8 * (rank + 1))
    together = optax.chain(collectives.pmean_gradients(), optax.adam(0.05))
    found = trained(together, images[own], labels[own])
    expected = trained(optax.adam(0.05), images, labels)
    np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["b"], expected["b"], rtol=1e-4, atol=1e-4)
