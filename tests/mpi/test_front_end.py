"""Horovod's operations by a front end for NumPy's arrays: what all front ends have in common."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi.numpy_front_end import FRONT_END, Array
from mpi4py import MPI

from gradred import UsageError, config
from gradred.horovod import basics, objects, operations
from gradred.horovod.basics import Adasum, Average, Max, Min, Product, Sum
from gradred.horovod.collectives import Collectives
from gradred.horovod.errors import HorovodInternalError
from gradred.horovod.front_end import FrontEnd
from gradred.horovod.operations import poll, synchronize
from gradred.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from gradred.tensors import Tensors

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
TYPES = ["float32", "float64", "float16", "int32", "int64"]
WORLD = global_process_set
arrays = Collectives(FRONT_END)
numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def initialised() -> Iterator[None]:
    basics.init(process_sets="dynamic")
    yield
    operations.barrier()
    basics.shutdown()


def name() -> str:
    return f"test.{next(numbers)}"


def ours(*shape: int, dtype: str = "float64", rank: int = RANK) -> Array:
    """Small whole numbers of one rank, whose sums are exact in any order."""
    count = int(np.prod(shape))
    return ((np.arange(count) + rank) % 5).reshape(shape).astype(dtype)


def everyone(*shape: int, dtype: str = "float64", size: int = SIZE) -> Array:
    return np.stack([ours(*shape, dtype=dtype, rank=rank) for rank in range(size)])


def allreduce(x: Array, out: Array, op: int, **how: Any) -> Any:
    given = {"prescale": 1.0, "postscale": 1.0, "process_set": WORLD, **how}
    return synchronize(arrays.allreduce(x, out, name(), op, **given))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4, 5)])
def test_allreduce(shape: tuple[int, ...], dtype: str) -> None:
    x = ours(*shape, dtype=dtype)
    before, out = x.copy(), np.empty_like(x)
    total = everyone(*shape, dtype=dtype).sum(0).astype(dtype)
    assert allreduce(x, out, Sum) is out
    np.testing.assert_array_equal(out, total)
    np.testing.assert_array_equal(x, before)
    assert allreduce(x, x, Sum) is x
    np.testing.assert_array_equal(x, total)


def test_operations_and_factors() -> None:
    x, all_of_them = ours(9), everyone(9)
    expected = {
        Average: all_of_them.mean(0),
        Min: all_of_them.min(0),
        Max: all_of_them.max(0),
        Product: all_of_them.prod(0),
    }
    for op, values in expected.items():
        np.testing.assert_allclose(allreduce(x, np.empty_like(x), op), values)
    scaled = allreduce(x, np.empty_like(x), Sum, prescale=0.5, postscale=4.0)
    np.testing.assert_array_equal(scaled, 2 * all_of_them.sum(0))


def test_operations_without_a_name_meet_by_their_order() -> None:
    sent = [ours(5), ours(6)]
    handles = [arrays.allreduce(x, x, None, Sum, 1.0, 1.0, WORLD) for x in sent]
    for handle, count in reversed([*zip(handles, (5, 6), strict=True)]):
        np.testing.assert_array_equal(synchronize(handle), everyone(count).sum(0))
        with pytest.raises(ValueError, match="no such handle"):
            poll(handle)


def test_axes_in_any_order() -> None:
    x = ours(4, 3).T  # the first axis is the fastest one
    expected = everyone(4, 3).sum(0).T
    handle = arrays.grouped_allreduce([x, ours(3)], None, name(), Sum, 1.0, 1.0, WORLD)
    out, _ = synchronize(handle)
    assert out.strides == x.strides
    np.testing.assert_array_equal(out, expected)
    with pytest.raises(ValueError, match="the tensor is not dense: shape"):
        allreduce(ours(8)[::2], np.empty(4), Sum)
    with pytest.raises(ValueError, match="the tensor for the result is not dense: shape"):
        allreduce(ours(4), np.empty(8)[::2], Sum)
    with pytest.raises(ValueError, match="another order than those of the result"):
        allreduce(ours(4, 3), np.empty((3, 4)).T, Sum)


def test_grouped_allreduce() -> None:
    sent = [ours(5), ours(2, 3, dtype="float32"), ours(0)]
    expected = [everyone(*x.shape, dtype=x.dtype.name).sum(0) for x in sent]
    for outputs in (None, sent):
        handle = arrays.grouped_allreduce(sent, outputs, name(), Sum, 1.0, 1.0, WORLD)
        found = synchronize(handle)
        assert isinstance(found, tuple)
        assert all(x is y for x, y in zip(found, sent, strict=True)) is (outputs is sent)
        for x, values in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, values)
    with pytest.raises(ValueError, match="no tensor in the group"):
        arrays.grouped_allreduce([], None, name(), Sum, 1.0, 1.0, WORLD)


@pytest.mark.parametrize("dtype", [*TYPES, "uint8", "bool"])
@pytest.mark.parametrize("least", [0, 2])
def test_allgather_of_unequal_first_axes(least: int, dtype: str) -> None:
    parts = [ours(least + rank, 3, dtype=dtype, rank=rank) for rank in range(SIZE)]
    found = synchronize(arrays.allgather(parts[RANK], name(), WORLD))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.concatenate(parts))


def test_grouped_allgather() -> None:
    sent = [ours(RANK + 1, 2), ours(3, dtype="int32")]
    first, second = synchronize(arrays.grouped_allgather(sent, name(), WORLD))
    expected = [ours(rank + 1, 2, rank=rank) for rank in range(SIZE)]
    np.testing.assert_array_equal(first, np.concatenate(expected))
    np.testing.assert_array_equal(second, everyone(3, dtype="int32").reshape(-1))
    with pytest.raises(ValueError, match="no axis"):
        arrays.allgather(np.array(1.0), name(), WORLD)


@pytest.mark.parametrize("root", sorted({0, SIZE - 1}))
def test_broadcast(root: int) -> None:
    x = ours(2, 5, dtype="float32")
    before, expected = x.copy(), ours(2, 5, dtype="float32", rank=root)
    found = synchronize(arrays.broadcast(x, None, root, name(), WORLD))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(x, before)
    assert synchronize(arrays.broadcast(x, x, root, name(), WORLD)) is x
    np.testing.assert_array_equal(x, expected)
    with pytest.raises(ValueError, match="not part of it"):
        arrays.broadcast(x, x, SIZE, name(), WORLD)


@pytest.mark.parametrize("form", [list, lambda rows: np.array(rows, np.int32)])
def test_alltoall(form: Any) -> None:
    rows = [to + 1 for to in range(SIZE)]  # as many for a rank on all ranks
    x = np.full((sum(rows), 2), RANK, np.int64)
    found, received = synchronize(arrays.alltoall(x, form(rows), name(), WORLD))
    assert received.dtype == np.int32
    assert received.tolist() == [RANK + 1] * SIZE
    np.testing.assert_array_equal(found[:, 0], np.repeat(np.arange(SIZE), RANK + 1))
    even, received = synchronize(arrays.alltoall(ours(SIZE, 2), None, name(), WORLD))
    assert received.tolist() == [1] * SIZE
    np.testing.assert_array_equal(even, everyone(SIZE, 2)[:, RANK])
    with pytest.raises(ValueError, match="int32 of one axis"):
        arrays.alltoall(x, np.ones(SIZE), name(), WORLD)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_reducescatter(rows: int) -> None:
    parts = np.array_split(everyone(rows, 3).sum(0), SIZE)  # the first ranks get one row more
    sums = synchronize(arrays.reducescatter(ours(rows, 3), name(), Sum, WORLD, 1.0, 1.0))
    np.testing.assert_array_equal(sums, parts[RANK])
    group = [ours(rows, 3), ours(4)]
    handle = arrays.grouped_reducescatter(group, name(), Average, WORLD, 1.0, 1.0)
    averages, _ = synchronize(handle)
    np.testing.assert_allclose(averages, parts[RANK] / SIZE)
    with pytest.raises(HorovodInternalError, match="averages or sums"):
        arrays.reducescatter(ours(rows, 3), name(), Max, WORLD, 1.0, 1.0)


@pytest.mark.skipif(bool(SIZE & (SIZE - 1)), reason="takes 1, 2, 4, ... ranks")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_adasum_of_parallel_vectors_is_their_average(dtype: str) -> None:
    x = (ours(70_000, rank=1) * (RANK + 1)).astype(dtype)
    expected = (ours(70_000, rank=1) * (SIZE + 1) / 2).astype(dtype)
    np.testing.assert_allclose(allreduce(x, np.empty_like(x), Adasum), expected, rtol=1e-3)
    matrix = x[:12].reshape(3, 4).T
    found = allreduce(matrix, np.empty_like(matrix), Adasum)
    np.testing.assert_allclose(found, expected[:12].reshape(3, 4).T, rtol=1e-3)
    apart = np.zeros(SIZE, dtype)
    apart[RANK] = 3
    assert allreduce(apart, apart, Adasum).tolist() == [3.0] * SIZE
    with pytest.raises(ValueError, match="int32 is not supported"):
        allreduce(ours(3, dtype="int32"), ours(3, dtype="int32"), Adasum)


@pytest.mark.skipif(SIZE == 1, reason="one rank adds nothing")
def test_adasum_is_refused_where_the_number_of_ranks_must_not_count() -> None:
    config.set("deterministic", "ranks")
    try:
        with pytest.raises(NotImplementedError, match="GRADRED_DETERMINISTIC is ranks"):
            allreduce(ours(3), np.empty(3), Adasum)
    finally:
        config.reset("deterministic")


@pytest.mark.skipif(SIZE == 1, reason="takes two ranks")
def test_ranks_that_differ_get_an_error_and_go_on() -> None:
    x = ours(4 + (RANK == 0))
    with pytest.raises(HorovodInternalError, match="Mismatched"):
        allreduce(x, x, Sum)
    np.testing.assert_array_equal(allreduce(ours(4), np.empty(4), Sum), everyone(4).sum(0))


def test_a_front_end_has_six_functions() -> None:
    asked = {name for one in (FrontEnd, Tensors) for name in vars(one) if name[0] != "_"}
    assert {name for name in vars(type(FRONT_END)) if name[0] != "_"} == asked
    assert len(asked) == 6


def test_what_is_no_array_or_has_another_type_is_refused() -> None:
    with pytest.raises(UsageError, match="a list is not an array"):
        arrays.broadcast([1.0], None, 0, name(), WORLD)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"numpy\.ndarray of <U1 is not supported"):
        arrays.allgather(np.array(["x"]), name(), WORLD)


def test_join_counts_as_zeros() -> None:
    for step in range(RANK + 1):  # rank 0 has the fewest
        found = allreduce_named(f"join.{step}", np.ones(3))
        assert found.tolist() == [SIZE - step] * 3
    assert operations.join() == SIZE - 1


def allreduce_named(label: str, x: Array) -> Any:
    return synchronize(arrays.allreduce(x, x, label, Sum, 1.0, 1.0, WORLD))


def test_process_sets() -> None:
    members = [*range(0, SIZE, 2)]
    if len(members) == SIZE:
        pytest.skip("takes a set of some of the ranks")
    few = add_process_set(ProcessSet(members))
    if RANK in members:
        expected = np.stack([ours(4, rank=rank) for rank in members])
        x = ours(4)
        np.testing.assert_array_equal(allreduce(x, x, Sum, process_set=few), expected.sum(0))
        own = ours(RANK + 1, 2)
        found = synchronize(arrays.allgather(own, name(), few))
        parts = [ours(rank + 1, 2, rank=rank) for rank in members]
        np.testing.assert_array_equal(found, np.concatenate(parts))
        root = members[-1]  # a global rank
        found = synchronize(arrays.broadcast(ours(3), None, root, name(), few))
        np.testing.assert_array_equal(found, ours(3, rank=root))
        operations.barrier(few)
    else:
        with pytest.raises(ValueError, match="not part of it"):
            allreduce(ours(4), ours(4), Sum, process_set=few)
    assert remove_process_set(few)


def test_objects_without_a_framework() -> None:
    root = SIZE - 1
    assert objects.broadcast_object({"rank": RANK}, root) == {"rank": root}
    lengths = [len(one) for one in objects.allgather_object("x" * (RANK + 1))]
    assert lengths == [rank + 1 for rank in range(SIZE)]


def test_timeline_has_the_operations(tmp_path: Any) -> None:
    path = tmp_path / "timeline.json"
    basics.start_timeline(str(path))
    try:
        allreduce_named("in.the.timeline", np.ones(2))
        operations.barrier()
    finally:
        basics.stop_timeline()
    if RANK == 0:
        assert "allreduce.in.the.timeline" in path.read_text()
