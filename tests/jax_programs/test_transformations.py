"""Collectives under grad, vmap, scan, checkpoint and cond give what the formulas say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import gradred
import gradred.jax as collectives

COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "allreduce": collectives.allreduce,
    "mean": lambda x: collectives.allreduce(x, "avg"),
    "bcast": collectives.bcast,
    "all_gather": collectives.all_gather,
    "reduce_scatter": collectives.reduce_scatter,
    "mean of parts": lambda x: collectives.reduce_scatter(x, "avg"),
    "all_to_all": collectives.all_to_all,
}


@pytest.fixture(params=COLLECTIVES)
def collective(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return COLLECTIVES[request.param]


def mine(rank: int, *shape: int) -> Any:
    return jax.random.normal(jax.random.key(rank), shape)


def weights(rank: int, like: Any) -> Any:
    return jnp.cos(jnp.arange(like.size, dtype=jnp.float32) + rank).reshape(like.shape)


def gradient_by_matrix(function: Callable[[Any], Any], x: Any, rank: int, size: int) -> Any:
    """The gradient of the sum over all ranks of `weights * function(x)`, without jax.grad.

    The collectives are linear: each unit vector of each rank in turn gives an entry.
    """
    found = np.zeros(x.size, np.float32)
    for one in range(size):
        for i in range(x.size):
            unit = jnp.zeros(x.size).at[i].set(1.0 if one == rank else 0.0).reshape(x.shape)
            result = function(unit)
            entry = collectives.allreduce(jnp.sum(weights(rank, result) * result))
            if one == rank:
                found[i] = entry
    return found.reshape(x.shape)


@pytest.mark.parametrize("form", ["at once", "jit"])
def test_gradient_is_that_of_all_ranks_together(
    collective: Callable[[Any], Any], form: str, rank: int, size: int
) -> None:
    x = mine(rank, 2 * size, 2)

    def loss(x: Any) -> Any:
        result = collective(x)
        return jnp.sum(weights(rank, result) * result)

    gradient = jax.grad(loss)
    found = (jax.jit(gradient) if form == "jit" else gradient)(x)
    expected = gradient_by_matrix(collective, x, rank, size)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_vjp_value_and_second_derivative(rank: int, size: int) -> None:
    x = jnp.float32(rank + 1)

    def loss(x: Any) -> Any:
        return collectives.allreduce(x**3)

    value, back = jax.vjp(loss, x)
    assert float(value) == sum(one**3 for one in range(1, size + 1))
    # Every rank has the same loss, so all of them together have `size` times the loss.
    assert float(back(jnp.float32(1))[0]) == pytest.approx(3 * size * x**2)
    second = jax.jit(jax.grad(jax.grad(loss)))(x)
    assert float(second) == pytest.approx(6 * size * x)


def test_gradient_beside_integers(rank: int, size: int) -> None:
    def loss(w: Any, steps: Any) -> Any:
        tree = collectives.allreduce({"w": w, "steps": steps})
        return jnp.sum(tree["w"]) * tree["steps"]

    found = jax.jit(jax.grad(loss))(jnp.ones(3), jnp.int32(2))
    assert found.tolist() == [2.0 * size * size] * 3


def test_operation_without_a_gradient_is_refused() -> None:
    with pytest.raises(gradred.UsageError, match="'max' has no gradient"):
        jax.grad(lambda x: collectives.allreduce(x, "max"))(1.0)
    cut = jax.lax.stop_gradient
    assert jax.grad(lambda x: x * collectives.allreduce(cut(x), "max"))(1.0) == 1.0


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_vmap_is_one_call(
    collective: Callable[[Any], Any], axis: int, rank: int, size: int
) -> None:
    x = mine(rank, 3 * size, 3 * size, 3 * size)
    function = jax.jit(jax.vmap(collective, in_axes=axis, out_axes=axis))
    assert function.lower(x).as_text().count("@gradred_collective") == 1
    found = jnp.moveaxis(function(x), axis, 0)
    for i, part in enumerate(jnp.moveaxis(x, axis, 0)):
        np.testing.assert_allclose(found[i], collective(part), rtol=1e-6)


def test_vmap_of_vmap_and_of_grad(collective: Callable[[Any], Any], rank: int, size: int) -> None:
    x = mine(rank, 2, 3, size)
    both = jax.jit(jax.vmap(jax.vmap(collective)))
    assert both.lower(x).as_text().count("@gradred_collective") == 1
    np.testing.assert_allclose(both(x)[1, 2], collective(x[1, 2]), rtol=1e-6)
    loss = lambda x: jnp.sum(jnp.sin(collective(x)))  # noqa: E731
    found = jax.jit(jax.vmap(jax.grad(loss)))(x[0])
    for i in range(3):
        np.testing.assert_allclose(found[i], jax.grad(loss)(x[0, i]), rtol=1e-5, atol=1e-6)


def test_vmap_over_a_part_of_a_tree(rank: int, size: int) -> None:
    both = jax.vmap(lambda x, y: collectives.allreduce((x, y)), in_axes=(0, None))
    found = both(jnp.arange(3.0), jnp.float32(rank))
    assert found[0].tolist() == [0.0, size, 2.0 * size]
    assert found[1].tolist() == [size * (size - 1) / 2] * 3


def test_scan_and_its_gradient(rank: int, size: int) -> None:
    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        carry = carry * collectives.allreduce(x, "avg")
        return carry, carry

    def loss(xs: Any) -> Any:
        return jax.lax.scan(step, jnp.float32(1), xs)[0]

    xs = jnp.arange(1.0, 6.0) + rank
    means = np.arange(1.0, 6.0) + (size - 1) / 2
    np.testing.assert_allclose(
        jax.jit(lambda xs: jax.lax.scan(step, jnp.float32(1), xs)[1])(xs), means.cumprod()
    )
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(xs), means.prod() / means, rtol=1e-5)


def test_loops(rank: int, size: int) -> None:
    def body(_: Any, x: Any) -> Any:
        return collectives.allreduce(x, "avg") + rank

    total = (size - 1) / 2
    found = jax.jit(lambda x: jax.lax.fori_loop(0, 10, body, x))(jnp.zeros(4))
    np.testing.assert_allclose(found, 9 * total + rank)
    again = jax.lax.while_loop(
        lambda x: x[0] < 5, lambda x: collectives.allreduce(x + 1, "avg"), jnp.zeros(2)
    )
    assert again.tolist() == [5.0, 5.0]


def test_checkpoint_makes_the_call_again(rank: int, size: int) -> None:
    def block(w: Any, x: Any) -> Any:
        return jnp.sin(collectives.allreduce(jnp.tanh(x @ w), "avg"))

    def loss(block: Callable[[Any, Any], Any], ws: Any, x: Any) -> Any:
        for w in ws:
            x = block(w, x)
        return jnp.sum(x)

    ws, x = [mine(one, 40, 40) for one in range(3)], mine(rank, 30, 40)
    plain = jax.jit(jax.grad(lambda ws: loss(block, ws, x)))
    again = jax.jit(jax.grad(lambda ws: loss(jax.checkpoint(block), ws, x)))
    assert again.lower(ws).as_text().count("@gradred_collective") > plain.lower(ws).as_text().count(
        "@gradred_collective"
    )
    for found, expected in zip(again(ws), plain(ws), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_cond_that_all_ranks_decide_alike(rank: int, size: int) -> None:
    function = jax.jit(lambda x, p: jax.lax.cond(p, collectives.allreduce, lambda x: x * 10.0, x))
    assert function(jnp.ones(2), True).tolist() == [size] * 2
    assert function(jnp.ones(2), False).tolist() == [10.0] * 2
