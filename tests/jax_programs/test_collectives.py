"""Results of the collectives, with and without jit, and errors of ranks that disagree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import ml_dtypes
from mpi4py import MPI

import gradred
import gradred.jax as collectives

Program = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(params=["at once", "jit"])
def program(request: pytest.FixtureRequest) -> Program:
    return jax.jit if request.param == "jit" else lambda function: function


def given(rank: int, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Small integers, whose sums are exact in every type."""
    count = int(np.prod(shape))
    return ((np.arange(count) * (rank + 2)) % 5 + 1).reshape(shape).astype(dtype)


REDUCED: dict[str, Callable[..., Any]] = {
    "sum": lambda all_: all_.sum(0),
    "avg": lambda all_: all_.mean(0),
    "min": lambda all_: all_.min(0),
    "max": lambda all_: all_.max(0),
    "prod": lambda all_: all_.prod(0),
}


@pytest.mark.parametrize("op", REDUCED)
@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (0, 2), (300_000,)])
def test_allreduce(program: Program, op: str, shape: Any, rank: int, size: int) -> None:
    found = program(lambda x: collectives.allreduce(x, op))(given(rank, shape))
    expected = REDUCED[op](np.stack([given(one, shape) for one in range(size)]).astype(float))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16"]
)
def test_allreduce_of_each_type(dtype: str, rank: int, size: int) -> None:
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    found = jax.jit(collectives.allreduce)(given(rank, (7,), kind))
    assert found.dtype == kind
    expected = np.stack([given(one, (7,)) for one in range(size)]).sum(0)
    np.testing.assert_array_equal(np.asarray(found, np.float32), expected)


def test_logical_operations_and_complex_numbers(rank: int, size: int) -> None:
    mine = np.array([rank == 0, True, False])
    assert collectives.allreduce(mine, "lor").tolist() == [True, True, False]
    assert collectives.allreduce(mine, MPI.LAND).tolist() == [False, True, False]
    total = collectives.allreduce(jnp.array([1 + 2j * rank], jnp.complex64))
    assert total.tolist() == [size + 1j * size * (size - 1)]


def test_tree_of_arrays_is_one_operation(rank: int, size: int) -> None:
    tree = {"a": jnp.ones(3) * rank, "b": [jnp.arange(4), jnp.float32(rank)], "empty": {}}
    function = jax.jit(lambda one: collectives.allreduce(one, "sum"))
    assert function.lower(tree).as_text().count("@gradred_collective") == 1
    found = function(tree)
    total = size * (size - 1) / 2
    assert found["a"].tolist() == [total] * 3
    assert found["b"][0].tolist() == [0, size, 2 * size, 3 * size]
    assert found["b"][0].dtype == jnp.int32
    assert float(found["b"][1]) == total
    assert found["empty"] == {}
    assert collectives.allreduce({}) == {}


def test_pmean_tree(program: Program, rank: int, size: int) -> None:
    found = program(collectives.pmean_tree)({"w": jnp.full(5, float(rank)), "b": jnp.ones(())})
    assert found["w"].tolist() == [(size - 1) / 2] * 5
    assert float(found["b"]) == 1.0


def test_bcast_from_each_root(program: Program, rank: int, size: int) -> None:
    for root in range(size):
        found = program(lambda x, root=root: collectives.bcast(x, root))(
            [given(rank, (3, 2)), jnp.int32(rank)]
        )
        np.testing.assert_array_equal(found[0], given(root, (3, 2)))
        assert int(found[1]) == root


@pytest.mark.parametrize("shape", [(1,), (3, 2), (2, 0), (70_000,)])
def test_all_gather(program: Program, shape: Any, rank: int, size: int) -> None:
    found = program(collectives.all_gather)(given(rank, shape))
    np.testing.assert_array_equal(found, np.concatenate([given(o, shape) for o in range(size)]))


def test_all_gather_of_scalars(rank: int, size: int) -> None:
    assert collectives.all_gather(jnp.int32(rank)).tolist() == list(range(size))


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
@pytest.mark.parametrize("rows", [1, 3, 40_000])
def test_reduce_scatter(program: Program, op: str, rows: int, rank: int, size: int) -> None:
    shape = (size * rows, 2)
    found = program(lambda x: collectives.reduce_scatter(x, op))(given(rank, shape))
    whole = REDUCED[op](np.stack([given(one, shape) for one in range(size)]))
    np.testing.assert_allclose(found, whole[rank * rows : (rank + 1) * rows], rtol=1e-6)


def test_reduce_scatter_of_parts_of_4_mib_is_exact_each_time(rank: int, size: int) -> None:
    """jax #40830: gloo overwrote what it had not sent yet, so a part's last sums were wrong."""
    count = size << 20
    whole = np.arange(count) % 1009  # of each part other numbers
    part = np.split(whole * size + size * (size - 1) // 2, size)[rank]
    mine = jnp.asarray(whole + rank, jnp.float32)
    function = jax.jit(collectives.reduce_scatter)
    for _ in range(10):
        np.testing.assert_array_equal(function(mine), part)


@pytest.mark.parametrize("rows", [1, 3, 40_000])
def test_all_to_all(program: Program, rows: int, rank: int, size: int) -> None:
    shape = (size * rows, 2)
    found = program(collectives.all_to_all)(given(rank, shape))
    parts = [given(one, shape)[rank * rows : (rank + 1) * rows] for one in range(size)]
    np.testing.assert_array_equal(found, np.concatenate(parts))


def test_input_is_unchanged(program: Program, rank: int) -> None:
    x = jnp.asarray(given(rank, (1000,)))
    program(collectives.allreduce)(x).block_until_ready()
    program(collectives.bcast)(x).block_until_ready()
    np.testing.assert_array_equal(x, given(rank, (1000,)))


def test_ranks_that_disagree_get_an_error_and_go_on(program: Program, rank: int, size: int) -> None:
    function = program(lambda x: collectives.allreduce(x, name="disagree"))
    if size > 1:
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"UsageError: .*Mismatched"):
            function(jnp.ones(3 + (rank == size - 1))).block_until_ready()
    assert function(jnp.ones(3)).tolist() == [size] * 3


def test_arguments_that_no_rank_can_carry_out(size: int) -> None:
    with pytest.raises(gradred.UsageError, match="Did you mean 'avg'"):
        collectives.allreduce(jnp.ones(2), "mean")
    with pytest.raises(gradred.UsageError, match="own operations alone"):
        collectives.allreduce(jnp.ones(2), MPI.MINLOC)
    with pytest.raises(gradred.UsageError, match=r"root -1 is none of the \d+ ranks"):
        collectives.bcast(jnp.ones(2), -1)
    for function in (collectives.reduce_scatter, collectives.all_to_all):
        with pytest.raises(gradred.UsageError, match="no equal part for each"):
            function(jnp.ones(()))
        if size > 1:
            with pytest.raises(gradred.UsageError, match="Pad it to a multiple"):
                jax.jit(function)(jnp.ones(size + 1))
    with pytest.raises(gradred.UsageError, match="have their ranks already"):
        collectives.init()
    with pytest.raises(jax.errors.JaxRuntimeError, match="not defined for float32"):
        collectives.allreduce(jnp.ones(2), "bor").block_until_ready()


def test_unknown_type_is_refused() -> None:
    if not hasattr(jnp, "float8_e4m3b11fnuz"):
        pytest.skip("this JAX has no type that gradred lacks")
    x = jnp.ones(3, jnp.float8_e4m3b11fnuz)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no element type for XLA's type"):
        collectives.allreduce(x).block_until_ready()


def test_arguments_that_one_rank_refuses_are_an_error_on_all(rank: int, size: int) -> None:
    if size == 1:
        pytest.skip("one rank has no peer")
    x = jnp.ones(3, bool if rank == 0 else jnp.float32)
    mean = jax.jit(lambda x: collectives.allreduce(x, "avg", name="refused"))
    errors = (jax.errors.JaxRuntimeError, ValueError)
    with pytest.raises(errors, match="bool cannot be averaged") as found:
        mean(x).block_until_ready()
    if rank > 0:
        assert "rank 0 has refused its arguments" in str(found.value)
    assert float(collectives.allreduce(1.0)) == size
