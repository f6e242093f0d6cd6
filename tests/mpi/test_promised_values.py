"""What docs/results.md promises of special values, in every way that a call can be carried out.

The MPIs differ: each rank of MPICH's keeps another of two inputs if one is NaN, Intel MPI drops the
NaN, Open MPI hands on bytes of bool that are neither 0 nor 1. None adds all narrow floats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi.exact import Array, numpy_dtype
from mpi4py import MPI

import gradred
from gradred import schedules

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
FLOATS = ["float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float32", "float64"]
NARROW = FLOATS[:4]
TRUE = np.array([0, 1, 2, 0, 255, 4, 0, 3], np.uint8)  # of rank 0, as bytes
ALSO_TRUE = np.array([0, 0, 0, 2, 1, 8, 1, 3], np.uint8)  # of all other ranks
TRUTH_OPS: dict[str, np.ufunc] = {
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
}
BOOL_OPS = TRUTH_OPS | {
    "min": np.logical_and,
    "max": np.logical_or,
    "band": np.logical_and,
    "bor": np.logical_or,
    "bxor": np.logical_xor,
}


def started_first(x: Array, op: str) -> Array:
    """The MPI carries out what is started before a blocking call."""
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    y = np.empty_like(x)
    comm.Iallreduce(x, y, op).Wait()
    comm.Free()
    return y


def persistent(x: Array, op: str) -> Array:
    y = np.empty_like(x)
    p = COMM.Allreduce_init(x, y, op)
    p()
    p.Free()
    return y


def in_blocks(x: Array, op: str, plan: str | None = None) -> Array:
    """Each rank reduces one block, and all have the same input in each."""
    return gradred.reduce_scatter_block(np.tile(x, SIZE), op, plan=plan, comm=COMM)


WAYS: dict[str, Callable[[Array, str], Array]] = {
    "started first": started_first,
    "started": lambda x, op: gradred.iallreduce(x, op, comm=COMM).wait(),
    "persistent": persistent,
    "blocks": in_blocks,
    "blocks by the MPI": lambda x, op: in_blocks(x, op, "mpi"),
    "usual": lambda x, op: gradred.allreduce(x, op, comm=COMM),
}
for named in ("mpi", *schedules.names("allreduce")):
    WAYS[f"plan {named}"] = lambda x, op, plan=named: gradred.allreduce(x, op, plan=plan, comm=COMM)


def folded(values: list[Array], function: Callable[[Array, Array], Array]) -> Array:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def bits(array: Array) -> list[int]:
    found: list[int] = array.view(f"uint{8 * array.dtype.itemsize}").tolist()
    return found


def inputs(first: Any, others: Any) -> list[Array]:
    return [np.asarray(first if rank == 0 else others) for rank in range(SIZE)]


def order(op: str, a: Array, b: Array) -> Array:
    """The minimum or maximum: NaN wins, and -0 is less than +0."""
    below = (a < b) | ((a == b) & np.signbit(a) & ~np.signbit(b))
    found = np.where(below == (op == "min"), a, b)
    return np.where(np.isnan(a) | np.isnan(b), np.nan, found)


@pytest.mark.skipif(SIZE == 1, reason="on one rank nothing is compared")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins_and_zeros_are_ordered_on_all_ranks(op: str, way: str) -> None:
    given = inputs([np.nan, 1, -0.0, 0.0, 1, -2], [1, np.nan, 0.0, -0.0, 2, 3])
    expected = folded(given, lambda a, b: order(op, a, b))
    wrong = []
    for dtype in FLOATS:
        kind = numpy_dtype(dtype)
        y = WAYS[way](given[RANK].astype(kind), op)
        if bits(y) != bits(expected.astype(kind)):
            wrong.append(f"{dtype}: {y.astype(float)}")
    assert not wrong


@pytest.mark.parametrize("way", WAYS)
def test_logical_results_are_0_or_1(way: str) -> None:
    given = inputs(TRUE, ALSO_TRUE)
    wrong = []
    cases = [("bool", op) for op in BOOL_OPS]
    cases += [(dtype, op) for dtype in ("int8", "uint16", "int32", "int64") for op in TRUTH_OPS]
    for dtype, op in cases:
        expected = folded([value != 0 for value in given], BOOL_OPS[op])
        mine = given[RANK]
        x = mine.view(np.bool_) if dtype == "bool" else mine.astype(dtype)
        y = WAYS[way](x, op)
        if bits(y) != expected.astype(int).tolist():
            wrong.append(f"{dtype} {op}: {bits(y)}, not {expected.astype(int)}")
    assert not wrong


@pytest.mark.skipif(SIZE == 1, reason="on one rank nothing is rounded")
@pytest.mark.parametrize("way", WAYS)
def test_narrow_floats_are_rounded_to_even(way: str) -> None:
    wrong = []
    for dtype in NARROW:
        kind = numpy_dtype(dtype)
        digits = gradred.element_types.ELEMENT_TYPES[dtype].digits
        half = 2.0**-digits  # half a unit in the last place of 1
        given = inputs([1, 1 + 2 * half, -1, 3], [half, half, -half, 0.25])
        rest = inputs(given[0], np.zeros(4))  # two ranks alone have other values than 0
        mine = given[1] if RANK == 1 else rest[RANK]
        y = WAYS[way](mine.astype(kind), "sum")
        expected = (given[0] + given[1]).astype(kind)  # ml_dtypes and NumPy round ties to even
        if bits(y) != bits(expected):
            wrong.append(f"{dtype}: {y.astype(float)}, not {expected.astype(float)}")
    assert not wrong


@pytest.mark.parametrize("way", WAYS)
def test_8_bit_integers_wrap_around(way: str) -> None:
    for dtype, largest in (("int8", 127), ("uint8", 255)):
        y = WAYS[way](np.full(70, largest, dtype), "sum")
        assert set(y.tolist()) == {int(np.array(largest * SIZE).astype(dtype))}


@pytest.mark.parametrize("dtype", ["bool", "int32"])
@pytest.mark.parametrize("op", TRUTH_OPS)
def test_logical_result_of_one_input_is_0_or_1(op: str, dtype: str) -> None:
    """On one rank, and on the first ranks of a scan."""
    alone = gradred.Comm(MPI.COMM_SELF)
    x = TRUE.view(np.bool_) if dtype == "bool" else TRUE.astype(dtype)
    truth = (TRUE != 0).astype(int).tolist()
    out = np.empty_like(x)
    alone.Allreduce(x, out, op)
    started = np.empty_like(x)
    alone.Iallreduce(x, started, op).Wait()
    results = [out, started, gradred.allreduce(x, op, comm=alone), gradred.scan(x, op, comm=alone)]
    assert [bits(y) for y in results] == [truth] * len(results)
    for plan in (None, *schedules.names("scan")):
        up_to_own = gradred.scan(x, op, plan=plan, comm=COMM)
        before_own = gradred.scan(x, op, exclusive=True, plan=plan, comm=COMM)
        assert RANK != 0 or bits(up_to_own) == truth
        assert RANK != 1 or bits(before_own) == truth
