"""Named operations in flight that use the same memory follow each other, in one order on all ranks.

A sum of a sum has another value than two sums of the same numbers. So the results show whether an
operation has read what the one before it wrote.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import gradred
from gradred import named

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
COUNTS = [1, 600, 3000, 400_000]
"""Numbers of float64: in the calls' own line, in a batch, alone, and read where they lie."""

names = itertools.count()


@pytest.fixture(scope="module")
def engine() -> Iterator[named.NamedOperations]:
    made = named.NamedOperations(COMM)
    yield made
    made.free()


@pytest.fixture(scope="module")
def other() -> Iterator[named.NamedOperations]:
    made = named.NamedOperations(COMM, title="the others")
    yield made
    made.free()


def name() -> str:
    return f"shared{next(names)}"


def of(array: np.ndarray[Any, Any], out: np.ndarray[Any, Any] | None = None) -> named.Described:
    result = array if out is None else out
    return array.ctypes.data, result.ctypes.data, str(array.dtype), array.shape


def gathered(x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    found = np.empty((SIZE, *x.shape), x.dtype)
    COMM.Allgather(np.ascontiguousarray(x), found)
    return list(found)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("order", ["one order", "each rank its own"])
def test_sums_of_one_array_follow_each_other(
    engine: named.NamedOperations, count: int, order: str
) -> None:
    for turn in range(20):
        x = np.full(count, RANK + 1.0)
        once, titles = SIZE * (SIZE + 1) / 2, [name() for _ in range(4)]
        if order == "each rank its own":
            titles = [titles[i] for i in np.random.default_rng([turn, RANK]).permutation(4)]
        requests = [engine.submit("allreduce", one, [of(x)]) for one in titles]
        for request in requests[:: -1 if turn % 2 else 1]:
            request.wait(30)
        np.testing.assert_array_equal(x, once * SIZE**3)


@pytest.mark.parametrize("count", COUNTS)
def test_one_rank_alone_has_them_in_one_array(engine: named.NamedOperations, count: int) -> None:
    """The others cannot know it, and may submit the second operation first."""
    for turn in range(20):
        x, y = np.full(count, RANK + 1.0), np.full(count, 10.0 * (RANK + 1))
        second = x if RANK == 0 else y
        first_sum, second_sum = SIZE * (SIZE + 1) / 2, 1.0 + 10.0 * (SIZE * (SIZE + 1) / 2 - 1)
        titles = {name(): x, name(): second}
        order = list(titles)[:: -1 if (RANK + turn) % 2 else 1]
        requests = [engine.submit("allreduce", one, [of(titles[one])]) for one in order]
        for request in requests:
            request.wait(30)
        # Whichever comes later has the result of the other one as rank 0's part.
        whole = (first_sum - 1.0) + second_sum
        later = gathered(x)[0][0]
        assert later == whole
        if SIZE > 1 and RANK > 0:
            assert (x[0], y[0]) in [(first_sum, whole), (whole, second_sum)]
            assert (x == x[0]).all()
            assert (y == y[0]).all()


def test_small_arrays_that_share_memory_are_in_no_batch(engine: named.NamedOperations) -> None:
    """Many are ready at once: those of memory of their own are packed, the others follow."""
    for _ in range(10):
        apart = [np.full(8, RANK + float(i)) for i in range(30)]
        x = np.full(8, RANK + 1.0)
        begin = name()
        shown = [
            engine.submit("allreduce", f"{begin}.{i}", [of(one)]) for i, one in enumerate(apart)
        ]
        for i in range(5):
            shown.insert(6 * i, engine.submit("allreduce", f"{begin}.same.{i}", [of(x)]))
        for request in shown:
            request.wait(30)
        np.testing.assert_array_equal(x, SIZE * (SIZE + 1) / 2 * SIZE**4)
        for i, one in enumerate(apart):
            np.testing.assert_array_equal(one, SIZE * (SIZE - 1) / 2 + SIZE * i)


@pytest.mark.parametrize("count", COUNTS[1:])
def test_parts_of_one_array_follow_each_other(engine: named.NamedOperations, count: int) -> None:
    for _ in range(10):
        x = np.full(count, RANK + 1.0)
        whole, half = x, x[count // 3 : count // 2]
        requests = [engine.submit("allreduce", name(), [of(one)]) for one in (whole, half, whole)]
        for request in requests:
            request.wait(30)
        expected = np.full(count, SIZE * (SIZE + 1) / 2 * SIZE)
        expected[count // 3 : count // 2] *= SIZE
        np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("count", COUNTS)
def test_a_reader_sees_the_array_before_or_after_on_all_ranks_alike(
    engine: named.NamedOperations, count: int
) -> None:
    before, after = SIZE * (SIZE + 1) / 2, SIZE * (SIZE + 1) / 2 * SIZE
    for turn in range(10):
        x, out = np.full(count, RANK + 1.0), np.zeros(count)
        reads, writes = name(), name()
        asked = {reads: [of(x, out)], writes: [of(x)]}
        order = [writes, reads] if (turn + RANK) % 2 else [reads, writes]
        for request in [engine.submit("allreduce", one, asked[one]) for one in order]:
            request.wait(30)
        np.testing.assert_array_equal(x, before)
        assert out[0] in (before, after)
        assert (out == out[0]).all()
        assert len({float(one[0]) for one in gathered(out)}) == 1


def test_readers_of_one_array_need_not_wait(engine: named.NamedOperations) -> None:
    x = np.full(50_000, RANK + 1.0)
    outs = [np.empty_like(x) for _ in range(6)]
    held = engine.submit("allreduce", "early" if RANK == 0 else "late", [of(x, outs[0])])
    for out in outs[1:]:  # `held` has not been submitted by all ranks
        engine.submit("allreduce", name(), [of(x, out)]).wait(30)
        np.testing.assert_array_equal(out, SIZE * (SIZE + 1) / 2)
    rest = [one for one in ("early", "late") if one != held.name]
    for one in rest:
        engine.submit("allreduce", one, [of(x, outs[1])]).wait(30)
    held.wait(30)


@pytest.mark.parametrize("kind", ["allgather", "broadcast", "alltoall", "reducescatter"])
@pytest.mark.parametrize("rows", [SIZE, 2000 * SIZE])
def test_other_kinds_follow_a_sum_of_their_array(
    engine: named.NamedOperations, kind: str, rows: int
) -> None:
    """The sum is submitted first everywhere, and so is the older one."""
    for _ in range(10):
        x = np.full((rows, 3), RANK + 1.0)
        once = SIZE * (SIZE + 1) / 2
        asked: dict[str, Any] = {"splits": [rows // SIZE] * SIZE} if kind == "alltoall" else {}
        first = engine.submit("allreduce", name(), [of(x)])
        place = x.ctypes.data if kind == "broadcast" else 0
        second = engine.submit(kind, name(), [(x.ctypes.data, place, "float64", x.shape)], **asked)
        first.wait(30)
        second.wait(30)
        if kind == "broadcast":
            assert (x == once).all() or (x == 1.0).all()
            continue
        got = second.outputs[0].view("float64")
        if kind == "reducescatter":
            assert (got == once * SIZE).all() or (got == once).all()
        else:
            mine = [[one, once] for one in range(1, SIZE + 1)]
            for part, allowed in zip(np.split(got, SIZE), mine, strict=True):
                assert (part == part[0]).all()
                assert part[0] in allowed
            assert (got == once).all() or len({float(p[0]) for p in np.split(got, SIZE)}) == SIZE


def test_large_sums_in_chunks_follow_each_other(engine: named.NamedOperations) -> None:
    x, urgent = np.full(4_000_000, RANK + 1.0), np.ones(3)
    engine.submit("allreduce", name(), [of(urgent)], priority=5).wait(30)
    for _ in range(3):
        x[:] = RANK + 1.0
        requests = [engine.submit("allreduce", name(), [of(x)], priority=-i) for i in range(3)]
        for request in requests:
            request.wait(60)
        np.testing.assert_array_equal(x, SIZE * (SIZE + 1) / 2 * SIZE**2)


def test_operations_of_two_communicators_follow_each_other(
    engine: named.NamedOperations, other: named.NamedOperations
) -> None:
    """In the order in which a rank submits them: the ranks agree on none between communicators."""
    for count in COUNTS:
        for turn in range(10):
            x, own = np.full(count, RANK + 1.0), np.full(5, RANK + 1.0)
            engines = [engine, other, engine, other]
            requests = [one.submit("allreduce", name(), [of(x)]) for one in engines]
            requests += [other.submit("allreduce", name(), [of(own)])]
            for request in requests[:: -1 if turn % 2 else 1]:
                request.wait(30)
            np.testing.assert_array_equal(x, SIZE * (SIZE + 1) / 2 * SIZE**3)
            np.testing.assert_array_equal(own, SIZE * (SIZE + 1) / 2)


def test_what_is_held_names_what_it_waits_for(
    engine: named.NamedOperations, other: named.NamedOperations
) -> None:
    if SIZE == 1:
        pytest.skip("no peer keeps it waiting")
    x = np.full(5, RANK + 1.0)
    if RANK == 0:
        first = engine.submit("allreduce", "held first", [of(x)])
        second = other.submit("allreduce", "held second", [of(x)])
        assert "'held first'" in second.waits_for
        assert "same memory" in second.waits_for
        with pytest.raises(gradred.TimeoutError, match="held first"):
            second.wait(0.05)
    COMM.Barrier()
    if RANK != 0:
        first = engine.submit("allreduce", "held first", [of(x)])
        second = other.submit("allreduce", "held second", [of(x)])
    second.wait(30)
    first.wait(30)
    np.testing.assert_array_equal(x, SIZE * (SIZE + 1) / 2 * SIZE)


def test_a_join_comes_behind_what_is_held(
    engine: named.NamedOperations, other: named.NamedOperations
) -> None:
    x = np.full(5, RANK + 1.0)
    first = engine.submit("allreduce", name(), [of(x)])
    second = other.submit("allreduce", name(), [of(x)])
    joined = other.join()
    for request in (joined, second, first):
        request.wait(30)
    np.testing.assert_array_equal(x, SIZE * (SIZE + 1) / 2 * SIZE)
