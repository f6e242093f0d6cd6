"""Sums of leaves: every split builds one tree, and each rank adds up its own leaves by it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gradred import _core, schedules
from gradred.element_types import numpy_dtype
from gradred.errors import UsageError
from gradred.schedules import Schedule, input_, leaf_tree, recv, reduce, scratch, send, verify, work

Vector = npt.NDArray[Any]


def splits(leaves: int, ranks: int) -> Iterator[list[int]]:
    """All ways to give each of the ranks a run of the leaves."""
    for cuts in itertools.combinations_with_replacement(range(leaves + 1), ranks - 1):
        ends = [0, *cuts, leaves]
        yield [b - a for a, b in itertools.pairwise(ends)]


def some_split(rng: random.Random) -> list[int]:
    leaves, ranks = rng.randint(1, 64), rng.randint(1, 64)
    cuts = sorted(rng.randint(0, leaves) for _ in range(ranks - 1))
    return [b - a for a, b in itertools.pairwise([0, *cuts, leaves])]


def schedules_of(leaves: Sequence[int], chunks: int) -> list[Schedule]:
    return [leaf_tree(rank, leaves, chunks=chunks) for rank in range(len(leaves))]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_every_split_of_up_to_eight_leaves_is_proved(ranks: int) -> None:
    for leaves in range(1, 9):
        for split in splits(leaves, ranks):
            for chunks in {1, ranks}:
                assert verify(schedules_of(split, chunks)).ok, (split, chunks)


def test_splits_of_up_to_64_leaves_over_up_to_64_ranks_are_proved() -> None:
    rng = random.Random(64)
    drawn = [some_split(rng) for _ in range(60)]
    even = [[64 // ranks] * ranks for ranks in (1, 2, 4, 8, 16, 32, 64)]
    for split in [*drawn, *even, [0] * 63 + [64], [1] * 63 + [1], [33, 31], [63, 1], [1, 63]]:
        for chunks in {1, len(split)}:
            assert verify(schedules_of(split, chunks)).ok, (split, chunks)


def test_a_proof_is_that_of_the_tree_not_of_any_sum() -> None:
    def line(rank: int) -> Schedule:
        """Three ranks with a leaf each, summed as x0 + (x1 + x2)."""
        others = [peer for peer in range(3) if peer != rank]
        place = [scratch(peer, 0) if peer != rank else input_(0) for peer in range(3)]
        steps = [send(peer, input_(0)) for peer in others]
        steps += [recv(peer, scratch(peer, 0)) for peer in others]
        steps += [reduce(place[2], scratch(3, 0), operand=place[1])]
        steps += [reduce(scratch(3, 0), work(0), operand=place[0])]
        return Schedule([steps], rank=rank, size=3, chunks=1, leaves=[1, 1, 1])

    with pytest.raises(UsageError, match="its leaves are not added up by their tree"):
        verify([line(rank) for rank in range(3)])


def test_a_leaf_that_is_missing_is_named() -> None:
    def lacking(rank: int) -> Schedule:
        sum_of = schedules_of([1, 2], 1)[rank]
        rounds = [[step for step in sum_of.rounds[0] if step.kind != "reduce"]]
        rounds[0].append(
            _core.copy(input_(0) if rank == 0 else scratch(0, 0), work(0))  # rank 0's leaf alone
        )
        return Schedule(rounds, rank=rank, size=2, chunks=1, leaves=[1, 2])

    with pytest.raises(UsageError, match="the result for chunk 0 lacks leaf 1"):
        verify([lacking(rank) for rank in range(2)])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: leaf_tree(0, [1, 1], chunks=3), "Pass 1 chunk or 2"),
        (lambda: leaf_tree(2, [1, 1]), "Pass 1 chunk or 2"),
        (lambda: leaf_tree(0, [0, 0]), "not all 0"),
        (lambda: leaf_tree(0, [2, -1]), "not all 0"),
        (lambda: _validated(input_(0, 1, 1), [1, 1]), "it has only 1 vectors"),
        (lambda: _validated(input_(0), [1]), "a number for each rank"),
    ],
)
def test_what_no_schedule_of_leaves_can_be_is_refused(make: Callable[[], object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make()


def _validated(read: Any, leaves: list[int]) -> None:
    steps = [[_core.copy(read, work(0))]]
    schedules.validate(Schedule(steps, rank=0, size=2, chunks=1, leaves=leaves))


# ---- the bits ------------------------------------------------------------------------------


def pair(op: str, dtype: str, a: Vector, b: Vector) -> Vector:
    target = np.empty_like(a)
    raw = [one.view(np.uint8) for one in (target, a, b)]
    _core.reduce_pair("sum" if op in ("avg", "premul") else op, dtype, *raw)
    return target


def tree(op: str, dtype: str, leaves: Sequence[Vector]) -> Vector:
    """The definition: the left half is the largest power of two below their number."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return pair(op, dtype, tree(op, dtype, leaves[:half]), tree(op, dtype, leaves[half:]))


def drawn(dtype: str, leaves: int, count: int) -> Vector:
    rng = np.random.default_rng(leaves)
    x = rng.standard_normal((leaves, count)) * np.exp2(rng.integers(-3, 3, (leaves, count)))
    return x.astype(numpy_dtype(dtype))


def by_parts(op: str, dtype: str, x: Vector, split: Sequence[int], factor: float = 1.0) -> Vector:
    """What ranks with these leaves get, without an MPI."""
    count, most = x.shape[1], max(len(_core.parts_of_leaves(split, r)) for r in range(len(split)))
    parts = np.zeros((len(split), most, count), x.dtype)
    begin = 0
    for rank, leaves in enumerate(split):
        own = np.ascontiguousarray(x[begin : begin + leaves])
        begin += leaves
        to, given = parts[rank].ctypes.data, own.ctypes.data
        _core.add_leaves(to, given, count, dtype, op, factor, split, rank)
    result = np.empty(count, x.dtype)
    _core.add_parts(result.ctypes.data, parts.ctypes.data, count, dtype, op, split, most)
    return result


@pytest.mark.parametrize("op", ["sum", "prod", "max"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int16"])
def test_any_split_gives_the_bits_of_the_tree(dtype: str, op: str) -> None:
    rng = random.Random(dtype + op)
    for leaves, count in [(1, 5), (2, 3), (7, 100), (12, 5000), (33, 17)]:
        x = drawn(dtype, leaves, count)
        wanted = tree(op, dtype, list(x)).tobytes()
        for ranks in (1, 2, 3, 5):
            split = rng.choice(list(splits(min(leaves, 12), ranks)))
            split[-1] += leaves - sum(split)
            assert by_parts(op, dtype, x, split).tobytes() == wanted, split


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_leaves(dtype: str) -> None:
    x = drawn("float64", 11, 64).astype(dtype) * (1 + 2j)
    x = x.astype(dtype)
    for split in ([11], [4, 7], [1, 0, 10]):
        assert by_parts("sum", dtype, x, split).tobytes() == tree("sum", dtype, list(x)).tobytes()


def test_a_mean_divides_once_and_a_factor_scales_each_leaf() -> None:
    x = drawn("float32", 6, 9)
    whole = tree("sum", "float32", list(x))
    scaled = tree("sum", "float32", list(x * np.float32(0.1)))
    for split in ([6], [5, 1], [2, 0, 4]):
        assert by_parts("avg", "float32", x, split).tobytes() == (whole / np.float32(6)).tobytes()
        assert by_parts("premul", "float32", x, split, 0.1).tobytes() == scaled.tobytes()


def test_a_single_leaf_of_a_logical_operation_becomes_0_or_1() -> None:
    x = np.array([[0, 2, -7]], np.int32)
    assert by_parts("land", "int32", x, [0, 1]).tolist() == [0, 1, 1]
