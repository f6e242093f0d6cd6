"""torch.distributed's operations in flight on memory that another one uses follow each other."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, torch

__all__ = ["group_of_all"]  # a fixture of this module
TOTAL = SIZE * (SIZE + 1) // 2
ROUNDS = 30
counts = pytest.mark.parametrize("count", [1, 1_000, 300_000])


@counts
def test_a_tensor_reduced_twice_in_flight_is_reduced_twice(count: int) -> None:
    for _ in range(ROUNDS):
        x = torch.full((count,), RANK + 1.0)
        works = [dist.all_reduce(x, async_op=True) for _ in range(2)]
        for work in works:
            work.wait()
        assert x.eq(TOTAL * SIZE).all(), x


@counts
def test_operations_on_parts_of_a_tensor_in_flight_follow_each_other(count: int) -> None:
    for _ in range(ROUNDS):
        x = torch.full((2 * count,), RANK + 1.0)
        whole, out = dist.all_reduce(x, async_op=True), torch.zeros(count * SIZE)
        half = dist.all_reduce(x[count:], op=dist.ReduceOp.MAX, async_op=True)
        gathered = dist.all_gather_into_tensor(out, x[count:], async_op=True)
        for work in (gathered, half, whole):
            work.wait()
        assert x.eq(TOTAL).all(), x
        assert out.eq(TOTAL).all(), out


@counts
def test_reductions_to_one_rank_follow_sums_in_flight(count: int) -> None:
    for turn in range(ROUNDS):
        x, root = torch.full((count,), RANK + 1.0), turn % SIZE
        works: list[Any] = [dist.all_reduce(x, async_op=True)]
        works.append(dist.reduce(x, root, async_op=True))
        works.append(dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True))
        for work in works:
            work.wait()
        assert x.eq(TOTAL * SIZE).all(), x


def test_a_reduction_to_one_rank_leaves_the_others_tensors_unchanged() -> None:
    for x in (torch.full((4, 3), RANK + 1.0), torch.full((3, 4), RANK + 1.0).t()):
        work = dist.reduce(x, SIZE - 1, async_op=True)
        work.wait()
        assert x.eq(TOTAL if RANK == SIZE - 1 else RANK + 1.0).all(), x


def test_a_broadcast_after_a_sum_in_flight_sends_the_sum() -> None:
    for _ in range(ROUNDS):
        x = torch.full((1_000,), RANK + 1.0)
        works: list[Any] = [dist.all_reduce(x, async_op=True), dist.broadcast(x, 0, async_op=True)]
        works.append(dist.all_reduce(x, async_op=True))
        for work in works:
            work.wait()
        assert x.eq(TOTAL * SIZE).all(), x
