"""Operations made of a program's own functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import gradred
from gradred.element_types import ELEMENT_TYPES, numpy_dtype

pytest.importorskip("numba")

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
pytestmark = pytest.mark.skipif(SIZE > 3, reason="three ranks are enough for this")
FIRST = ("int32", "uint8", "bool", "float8_e5m2", "float16", "bfloat16", "float64", "complex64")
COUNTS = (1, 7, 513, 70_001)  # in a message, in slots, in pieces, of more than a block


def either(a: Any, b: Any) -> Any:
    return a | b


def joined(a: Any, b: Any) -> Any:
    """(1 + a)(1 + b) - 1, exact for small whole numbers in any order."""
    return a + b + a * b


def larger(a: Any, b: Any) -> Any:
    return a if abs(a) > abs(b) else b


def values(count: int, dtype: str, rank: int = RANK) -> np.ndarray[Any, Any]:
    whole: np.ndarray[Any, Any] = (np.arange(count) * 7 + 3 * rank) % 2
    return whole.astype(numpy_dtype(dtype))


def expected(function: Callable[[Any, Any], Any], count: int, dtype: str) -> Any:
    work = dtype if dtype == "bool" else "complex128"
    result = values(count, dtype, 0).astype(work)
    for rank in range(1, SIZE):
        result = function(result, values(count, dtype, rank).astype(work))
    return result.astype(numpy_dtype(dtype)) if dtype == "bool" else result


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize(
    "dtype",
    [
        dtype if dtype in FIRST else pytest.param(dtype, marks=pytest.mark.full)
        for dtype in ELEMENT_TYPES
    ],
)
def test_every_type(dtype: str) -> None:
    function = either if dtype == "bool" else joined
    op = gradred.user_op(function)
    for count in COUNTS:
        want = expected(function, count, dtype)
        x = values(count, dtype)
        np.testing.assert_array_equal(gradred.allreduce(x, op).astype(want.dtype), want)
        np.testing.assert_array_equal(x, values(count, dtype))
        gradred.allreduce(x, op, out=x)
        np.testing.assert_array_equal(x.astype(want.dtype), want)


@pytest.mark.parametrize("plan", ["ring", "rabenseifner", "recursive_doubling", None])
def test_every_way_to_call(plan: str | None) -> None:
    comm, op = gradred.Comm(WORLD), gradred.user_op(joined)
    for count in COUNTS:
        want = expected(joined, count, "float64").real
        x = values(count, "float64")
        y = np.empty_like(x)
        np.testing.assert_array_equal(gradred.allreduce(x, op, plan=plan), want)
        np.testing.assert_array_equal(gradred.iallreduce(x, op, plan=plan).wait(), want)
        for made in gradred.allreduce_many([x, x], op):
            np.testing.assert_array_equal(made, want)
        comm.Allreduce(x, y, op=op)
        np.testing.assert_array_equal(y, want)
        y[:] = 0
        comm.Iallreduce(x, y, op=op).Wait()
        np.testing.assert_array_equal(y, want)
        again = comm.Allreduce_init(x, y, op=op)
        for _ in range(3):
            y[:] = 0
            again.Start()
            again.Wait()
            np.testing.assert_array_equal(y, want)
        again.Free()
        blocks = np.tile(x, SIZE)
        np.testing.assert_array_equal(gradred.reduce_scatter_block(blocks, op), want)


def test_decorated_functions_and_what_they_take_from_around() -> None:
    import numba

    weight = 0.5

    @numba.njit
    def inner(a: Any, b: Any) -> Any:
        return a + b

    @numba.njit(fastmath=True)
    def halves(a: Any, b: Any) -> Any:
        return inner(a, b) + weight * 0

    @numba.vectorize
    def vectorized(a: Any, b: Any) -> Any:
        return a + b

    x = np.full(1000, RANK + 1.0)
    for function in (halves, vectorized):
        result = gradred.allreduce(x, gradred.user_op(function))
        np.testing.assert_array_equal(result, np.full(1000, SIZE * (SIZE + 1) / 2))


def test_a_function_made_twice_is_one_operation() -> None:
    first = gradred.user_op(lambda a, b: a * b)
    assert gradred.user_op(lambda a, b: a * b) is first
    assert gradred.user_op(lambda a, b: a + b) is not first
    assert repr(first) == f"UserOp({first.name})"


def test_division_by_zero_is_what_numpy_makes_of_it() -> None:
    op = gradred.user_op(lambda a, b: 1.0 / (1.0 / a + 1.0 / b))
    result = gradred.allreduce(np.zeros(100), op)
    np.testing.assert_array_equal(result, np.zeros(100))


def test_threads_of_gradreds_own_carry_them_out() -> None:
    op = gradred.user_op(larger)
    x = np.full(1 << 18, (-1.0) ** RANK * (RANK + 1))
    ended = threading.Event()
    request = gradred.iallreduce(x, op)
    request.add_done_callback(lambda _: ended.set())
    request.wait(20)
    assert ended.wait(20)
    np.testing.assert_array_equal(request.result(), np.full(1 << 18, (-1.0) ** (SIZE - 1) * SIZE))


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_other_functions_are_a_mismatch() -> None:
    mine = gradred.user_op(lambda a, b: a + b) if RANK == 0 else gradred.user_op(lambda a, b: b + a)
    comm = gradred.Comm(WORLD.Dup())
    with pytest.raises(gradred.UsageError, match=r"a function of the program's own.* function, "):
        gradred.allreduce(np.ones(10), mine, comm=comm)
    comm.Free()


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_a_function_and_a_named_operation_are_a_mismatch() -> None:
    comm = gradred.Comm(WORLD.Dup())
    with pytest.raises(gradred.UsageError, match="with sum"):
        gradred.allreduce(np.ones(10), "sum" if RANK == 0 else gradred.user_op(larger), comm=comm)
    comm.Free()


def test_what_is_refused() -> None:
    with pytest.raises(gradred.UsageError, match="of 1 and 2 it makes something else than of 2"):
        gradred.allreduce(np.ones(3), gradred.user_op(lambda a, b: a - b))
    with pytest.raises(gradred.UsageError, match="Numba cannot compile it for this type: No impl"):
        gradred.allreduce(np.ones(3, "complex64"), gradred.user_op(lambda a, b: a < b))
    with pytest.raises(gradred.UsageError, match=r"it takes the arguments \(a\)"):
        gradred.user_op(lambda a: a)  # type: ignore[misc, arg-type]
    with pytest.raises(TypeError, match="of the type ufunc, and no Python function"):
        gradred.user_op(np.add)

    def raises(a: Any, b: Any) -> Any:
        if a > b:
            raise ValueError
        return b

    with pytest.raises(gradred.UsageError, match="it raises an exception"):
        gradred.user_op(raises)
    largest = gradred.allreduce(np.full(3, RANK), gradred.user_op(larger), plan="mpi")
    assert largest.tolist() == [SIZE - 1] * 3
