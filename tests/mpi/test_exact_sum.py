"""`gradred.exact_sum` of arrays that are split among the ranks in any way."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from lenders import Lender
from mpi import sizes
from mpi4py import MPI

import gradred

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

pytestmark = [sizes.up_to_three_ranks, pytest.mark.usefixtures("usable")]

RNG = np.random.default_rng(7)
VALUES = np.ldexp(RNG.standard_normal(10_000), RNG.integers(-200, 200, 10_000))
VALUES = np.concatenate([VALUES, -VALUES[::3], [1e-30]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("split", ["even", "all on the last rank", "interleaved", "reversed"])
def test_neither_the_split_nor_the_order_matters(
    comm: gradred.Comm, split: str, dtype: str
) -> None:
    with np.errstate(over="ignore"):
        whole = VALUES.astype(dtype)
    whole = whole[np.isfinite(whole)]
    parts = {
        "even": lambda: np.array_split(whole, SIZE)[RANK],
        "all on the last rank": lambda: whole if RANK == SIZE - 1 else whole[:0],
        "interleaved": lambda: np.ascontiguousarray(whole[RANK::SIZE]),
        "reversed": lambda: np.array_split(whole[::-1].copy(), SIZE)[SIZE - 1 - RANK],
    }
    found = gradred.exact_sum(parts[split](), comm=comm)
    alone = gradred.exact_sum(whole, comm=MPI.COMM_SELF)
    assert (found, found.dtype) == (alone, np.dtype(dtype))
    if dtype == "float64":
        assert found == float(sum(map(Fraction, whole.tolist()), Fraction()))


def test_arrays_of_any_shape_and_library(comm: gradred.Comm) -> None:
    small = np.full((2, 3), 2.0**-60)
    forms: list[Any] = [small, np.asfortranarray(small), Lender(small), memoryview(small)]
    for one in forms:
        large = np.float64(1) if RANK == 0 else np.float64(-1) if RANK == 1 else np.float64(0)
        first = gradred.exact_sum(large, comm=comm)
        assert first == (1 if SIZE == 1 else 0)
        assert gradred.exact_sum(one, comm=comm) == SIZE * 6 * 2.0**-60


def test_tensors(comm: gradred.Comm) -> None:
    torch = pytest.importorskip("torch")
    x = torch.full((3,), 0.1, requires_grad=True)
    exact = float(sum([Fraction(float(np.float32(0.1)))] * 3 * SIZE))
    assert gradred.exact_sum(x, comm=comm) == np.float32(exact)


def test_what_is_not_finite_on_one_rank(comm: gradred.Comm) -> None:
    x = np.array([np.inf if RANK == 0 else 1.0])
    assert gradred.exact_sum(x, comm=comm) == np.inf
    x = np.array([np.nan if RANK == SIZE - 1 else 1.0])
    assert np.isnan(gradred.exact_sum(x, comm=comm))
    assert np.signbit(gradred.exact_sum(np.array([-0.0]), comm=comm))


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.ones(3, "int64"), "x is of type int64. Convert it to float32 or float64"),
        (np.ones(3, "float16"), "x is of type float16"),
        (np.ones(8)[::2], "not dense"),
        ([1.0, 2.0], "a list is not an array"),
    ],
)
def test_what_it_does_not_take(x: Any, says: str) -> None:
    with pytest.raises(gradred.UsageError, match=says):
        gradred.exact_sum(x, comm=MPI.COMM_SELF)


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_ranks_with_different_types_are_an_error_on_all(comm: gradred.Comm) -> None:
    x = np.ones(3, "float32" if RANK == 0 else "float64")
    with pytest.raises(gradred.UsageError, match="disagree"):
        gradred.exact_sum(x, comm=comm)
    assert gradred.exact_sum(np.ones(3), comm=comm) == 3 * SIZE
