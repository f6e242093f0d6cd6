"""Means of integers are those of Python's integers, truncated toward zero, whatever the sum is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi.exact import Array
from mpi4py import MPI
from numpy.testing import assert_array_equal

import gradred
from gradred import schedules
from gradred.named import NamedOperations

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
TYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def vector(rank: int, count: int, dtype: str) -> Array:
    """Values over the whole range; the first ones are the same on all ranks."""
    info = np.iinfo(dtype)
    random = np.random.default_rng(1000 * rank + count)
    values = random.integers(info.min, info.max, count, dtype, endpoint=True)
    equal = [info.max, info.min, 2**60 + 1, 1_700_000_000_123_456_789, 3]
    equal = [x if x <= info.max else info.max // 3 for x in equal]
    values[: len(equal)] = equal[:count]
    return values


def mean(ranks: range, count: int, dtype: str) -> Array:
    """The mean by Python's integers."""
    totals = np.zeros(count, object)
    for rank in ranks:
        totals += vector(rank, count, dtype).astype(object)
    return (np.abs(totals) // len(ranks) * np.where(totals < 0, -1, 1)).astype(dtype)


def ints(array: Any) -> list[int]:
    return [int(x) for x in array]


@pytest.mark.parametrize("count", [0, 1, 7, 1009, 70_001])
@pytest.mark.parametrize("dtype", TYPES)
def test_allreduce(dtype: str, count: int) -> None:
    x = vector(RANK, count, dtype)
    before = x.copy()
    expected = mean(range(SIZE), count, dtype)
    found = [gradred.allreduce(x, "avg", comm=COMM), *gradred.allreduce_many([x], "avg", comm=COMM)]
    found.append(gradred.iallreduce(x, "avg", comm=COMM).wait())
    y = np.zeros_like(x)
    COMM.Allreduce(x, y, "avg")
    found.append(y)
    request = COMM.Iallreduce(x, z := np.zeros_like(x), "avg")
    request.Wait()
    found.append(z)
    persistent = COMM.Allreduce_init(x, w := np.zeros_like(x), "avg")
    persistent()
    persistent.Start()
    persistent.Wait()
    persistent.Free()
    found.append(w)
    assert [np.array_equal(one, expected) for one in found] == [True] * len(found)
    assert_array_equal(x, before)
    COMM.Allreduce(MPI.IN_PLACE, x, "avg")
    assert_array_equal(x, expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_calls_with_blocks_and_of_some_ranks(dtype: str) -> None:
    count = 61
    x = vector(RANK, count * SIZE, dtype)
    expected = mean(range(SIZE), count * SIZE, dtype)[RANK * count : (RANK + 1) * count]
    found = np.zeros(count, dtype)
    COMM.Reduce_scatter_block(x, found, "avg")
    assert_array_equal(found, expected)
    assert_array_equal(gradred.reduce_scatter_block(x, "avg", comm=COMM), expected)
    y = vector(RANK, count, dtype)
    COMM.Scan(y, found, "avg")
    assert_array_equal(found, mean(range(RANK + 1), count, dtype))
    found[:] = 7
    COMM.Exscan(y, found, "avg")
    assert_array_equal(found, mean(range(RANK), count, dtype) if RANK > 0 else [7] * count)
    COMM.Scan(MPI.IN_PLACE, y, "avg")
    assert_array_equal(y, mean(range(RANK + 1), count, dtype))


@pytest.mark.parametrize("plan", ["node", "mpi", *schedules.names("allreduce")])
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64"])
def test_every_plan(plan: str, dtype: str) -> None:
    for count in (0, 1, 1009):
        x = vector(RANK, count, dtype)
        try:
            found = gradred.allreduce(x, "avg", comm=COMM, plan=plan)
        except gradred.UsageError as error:
            if "share" not in str(error) and "cannot" not in str(error):
                raise
            pytest.skip(str(error))
        assert_array_equal(found, mean(range(SIZE), count, dtype))


def test_a_schedule_of_the_users() -> None:
    for count in (1, 2, 1009):
        found = gradred.allreduce(vector(RANK, count, "int64"), "avg", comm=COMM, plan=ring)
        assert_array_equal(found, mean(range(SIZE), count, "int64"))


def ring(rank: int, size: int) -> schedules.Schedule:
    return schedules.make("ring", rank, size)


@pytest.mark.parametrize("dtype", TYPES)
def test_named_operations(dtype: str) -> None:
    operations = NamedOperations(COMM)
    try:
        for count in (3, 1009, 70_001):
            x = vector(RANK, count * SIZE, dtype)
            found = np.zeros_like(x)
            part = np.zeros(count, dtype)
            where = (x.ctypes.data, found.ctypes.data, dtype, x.shape)
            scattered = (x.ctypes.data, part.ctypes.data, dtype, x.shape, part.nbytes)
            requests = [
                operations.submit("allreduce", "all", [where], "avg"),
                operations.submit("reducescatter", "part", [scattered], "avg"),
            ]
            for request in requests:
                request.wait()
            expected = mean(range(SIZE), count * SIZE, dtype)
            assert_array_equal(found, expected)
            assert_array_equal(part, expected[RANK * count : (RANK + 1) * count])
    finally:
        operations.free()


def test_ranks_that_differ_hear_of_the_mean() -> None:
    if SIZE == 1:
        pytest.skip("one rank has no peer")
    for other in ("sum", "count"):
        count = 6 if other == "count" and RANK == 0 else 3
        op = "sum" if other == "sum" and RANK == 0 else "avg"
        with pytest.raises(gradred.UsageError, match="avg") as raised:
            gradred.allreduce(np.ones(2 * count if op == "sum" else count, int), op, comm=COMM)
        assert "int64" in str(raised.value)


FACTORS: dict[str, Callable[[], Any]] = {
    "allreduce": lambda: gradred.allreduce(stamps(), gradred.premul(3), comm=COMM),
    "started": lambda: gradred.iallreduce(stamps(), gradred.premul(3), comm=COMM).wait(),
    "by the MPI": lambda: gradred.allreduce(stamps(), gradred.premul(3), comm=COMM, plan="mpi"),
    "ring": lambda: gradred.allreduce(stamps(), gradred.premul(3), comm=COMM, plan="ring"),
}


def stamps() -> Array:
    return np.array([2**53 + 1 + RANK, -(2**54) - 1, 1_234_567_890_123_456_789 // SIZE, 5])


@pytest.mark.parametrize("way", FACTORS)
def test_integers_times_a_whole_number_are_exact(way: str) -> None:
    each = [2**53 + 1, -(2**54) - 1, 1_234_567_890_123_456_789 // SIZE, 5]
    expected = [3 * SIZE * x for x in each]
    expected[0] += 3 * sum(range(SIZE))
    wrapped = [(x + 2**63) % 2**64 - 2**63 for x in expected]
    assert ints(FACTORS[way]()) == wrapped
