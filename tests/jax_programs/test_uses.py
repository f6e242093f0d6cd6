"""Functions that JAX traces once and uses several times: each use has a name of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from mpi4py import MPI

import gradred.jax as collectives

RUNS = 10  # XLA may run the independent calls of each in another order
Function = Callable[..., Any]

mean = jax.jit(lambda x: collectives.allreduce(x, "avg"))


def block(w: Any, x: Any) -> Any:
    return jnp.sin(collectives.allreduce(jnp.tanh(x @ w), "avg"))


def independent(wrap: Callable[[Function], Function], ws: Any, x: Any) -> Any:
    return sum(jnp.sum(wrap(block)(w, x) ** 2) for w in ws)


def chain(wrap: Callable[[Function], Function], ws: Any, x: Any) -> Any:
    for w in ws:
        x = wrap(block)(w, x)
    return jnp.sum(x**2)


@pytest.mark.parametrize("program", [independent, chain])
@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit])
def test_blocks_of_one_trace(program: Any, wrap: Any, rank: int) -> None:
    ws = [jnp.full((128, 128), 0.01 * (i + 1)) for i in range(6)]
    x = jnp.full((128, 128), 0.01 * (rank + 1))
    plain = jax.jit(jax.grad(lambda ws: program(lambda f: f, ws, x)))(ws)
    function = jax.jit(jax.grad(lambda ws: program(wrap, ws, x)))
    for _ in range(RUNS):
        for found, expected in zip(function(ws), plain, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_helper_under_jit_called_often(size: int) -> None:
    @jax.jit
    def program(xs: Any) -> Any:
        return [mean(jnp.sin(x) * 0 + x) for x in xs]

    xs = [jnp.full((200, 200), float(i)) for i in range(12)]
    for _ in range(RUNS):
        assert [float(one[0, 0]) for one in program(xs)] == [float(i) for i in range(12)]


def test_helpers_that_call_helpers_and_loops(rank: int, size: int) -> None:
    """A function that is called again gets a copy, and so do those that it calls."""

    @jax.jit
    def both(x: Any) -> Any:
        return mean(x) + 10.0 * mean(x * x)

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        return carry + both(x), mean(x)

    @jax.jit
    def program(x: Any) -> Any:
        total, means = jax.lax.scan(step, 0.0, x, unroll=2)
        again, _ = jax.lax.scan(step, 0.0, x, unroll=2)
        branch = jax.lax.cond(x[0] > -1.0, lambda: both(x[1]), lambda: both(x[2]))
        return total, again, means, branch, both(x[1]), mean(x[1])

    x = jnp.arange(4.0)
    one = lambda x: x + 10.0 * x * x  # noqa: E731
    for _ in range(RUNS):
        total, again, means, branch, value, last = program(x)
        assert (float(total), float(again)) == (sum(map(one, x)), sum(map(one, x)))
        assert means.tolist() == x.tolist()
        assert (float(branch), float(value), float(last)) == (one(1.0), one(1.0), 1.0)


def names_of_calls(program: Any, *arguments: Any) -> list[str]:
    """The names of the calls in the lowered program, in the order of the text."""
    text = program.lower(*arguments).as_text()
    assert 'use = ""' not in text
    calls = [line for line in text.splitlines() if "@gradred_collective" in line]
    return [line.partition("{kind")[2].partition("}")[0] for line in calls]


def test_all_uses_of_a_program_have_different_names(rank: int) -> None:
    @jax.jit
    def program(x: Any) -> Any:
        y = jax.checkpoint(block)(x, x) + jax.checkpoint(block)(x + 1, x)
        return mean(y) + mean(y + 1) + collectives.allreduce(x, name="given")

    gradient = jax.jit(jax.grad(lambda x: jnp.sum(program(x))))
    names = names_of_calls(gradient, jnp.ones((3, 3)))
    assert len(names) == 7
    assert len(set(names)) == len(names)
    assert len(set(MPI.COMM_WORLD.allgather(names[0]))) == 1


def test_other_computations_do_not_change_the_names(rank: int) -> None:
    """A rank that computes something else beside the calls numbers them alike.

    Such a program may wait for ever, since XLA may make the calls in another order on each rank.
    So this test does not run it.
    """

    @jax.jit
    def program(xs: Any) -> Any:
        made = []
        for i, x in enumerate(xs):
            y = jnp.cos(x @ x) if (i + rank) % 2 else jnp.sin(x)
            made.append(mean(y))
        return made

    names = names_of_calls(program, [jnp.full((9, 9), float(i)) for i in range(40)])
    assert len(set(names)) == 40
    assert MPI.COMM_WORLD.allgather(names) == [names] * MPI.COMM_WORLD.size


def test_ranks_choose_what_they_compute_by_cond(rank: int) -> None:
    """The programs are the same on all ranks then, and so is the order of their calls."""

    @jax.jit
    def program(xs: Any, rank: Any) -> Any:
        made = []
        for i, x in enumerate(xs):
            odd = (i + rank) % 2 == 1
            made.append(mean(jax.lax.cond(odd, lambda y: jnp.cos(y @ y) * 0 + y, jnp.copy, x)))
        return made

    xs = [jnp.full((200, 200), float(i)) for i in range(40)]
    for _ in range(RUNS):
        assert [float(one[0, 0]) for one in program(xs, rank)] == [float(i) for i in range(40)]


def test_calls_outside_of_jit(size: int) -> None:
    assert [float(collectives.allreduce(float(i))) for i in range(3)] == [0.0, size, 2.0 * size]
    with jax.disable_jit():
        assert float(mean(3.0)) == 3.0
