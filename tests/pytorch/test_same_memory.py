"""torch.distributed's operations in flight on memory that another one uses follow each other."""

from __future__ import annotations

from collections.abc import Callable
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
def test_blocking_calls_follow_works_in_flight_which_are_waited_for_later(count: int) -> None:
    for turn in range(ROUNDS):
        x, other = (torch.full((count * SIZE,), RANK + 1.0) for _ in range(2))
        works = [dist.all_reduce(x, async_op=True) for _ in range(1 + turn % 2)]
        sums = TOTAL * SIZE ** (turn % 2)
        dist.all_reduce(other)
        assert other.eq(TOTAL).all(), other
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        assert x.eq(sums).all(), x
        part, whole = torch.zeros(count), torch.zeros(count * SIZE)
        dist.reduce_scatter_tensor(part, x)
        dist.all_gather_into_tensor(whole, part)
        dist.broadcast(part.fill_(RANK), turn % SIZE)
        assert whole.eq(sums * SIZE).all(), whole
        assert part.eq(turn % SIZE).all(), part
        if turn % 3:  # works that are not waited for end all the same
            for work in works:
                assert work.wait()
        assert x.eq(sums).all(), x


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


# Calls that copy their input. Each returns its outputs and its work.
COPYING: dict[str, Callable[[Any], tuple[list[Any], Any]]] = {
    "scatter": lambda x: (
        out := [torch.zeros_like(x[0])],
        dist.scatter(out[0], list(x) if RANK == 0 else None, 0, async_op=True),
    ),
    "all_to_all": lambda x: (
        out := [torch.zeros_like(row) for row in x],
        dist.all_to_all(out, list(x), async_op=True),
    ),
    "reduce_scatter": lambda x: (
        out := [torch.zeros_like(x[0])],
        dist.reduce_scatter(out[0], list(x), dist.ReduceOp.MAX, async_op=True),
    ),
    "gather of a column": lambda x: (
        out := [torch.zeros(SIZE) for _ in range(SIZE if RANK == 0 else 0)],
        dist.gather(x[:, 1], out or None, 0, async_op=True),
    ),
    "all_gather of a column": lambda x: (
        out := [torch.zeros(SIZE) for _ in range(SIZE)],
        dist.all_gather(out, x[:, 1], async_op=True),
    ),
    "all_to_all_single of columns": lambda x: (
        out := [torch.zeros(SIZE, 2)],
        dist.all_to_all_single(out[0], x[:, 1:3], async_op=True),
    ),
    "broadcast of a column": lambda x: (
        out := [x[:, 1]],
        dist.broadcast(out[0], 0, async_op=True),
    ),
    "reduce of a column": lambda x: (
        out := [x[:, 1]],
        dist.reduce(out[0], 0, dist.ReduceOp.MAX, async_op=True),
    ),
}


@pytest.mark.parametrize("name", COPYING)
@pytest.mark.parametrize("count", [4, 100_000])
def test_inputs_that_are_copied_are_read_after_sums_in_flight(name: str, count: int) -> None:
    for _ in range(ROUNDS):
        x = torch.full((SIZE, count), RANK + 1.0)
        work = dist.all_reduce(x, async_op=True)
        outputs, other = COPYING[name](x)
        other.wait()
        work.wait()
        assert all(one.eq(TOTAL).all() for one in outputs), outputs


def test_an_input_may_be_copied_while_others_are_sent_and_received() -> None:
    """Waiting for messages would make ranks wait for each other."""
    x = torch.full((300_000,), RANK + 1.0)
    sent = dist.isend(x, (RANK + 1) % SIZE)
    out = torch.zeros(300_000 // SIZE)
    dist.reduce_scatter(out, list(x[: out.numel() * SIZE].view(SIZE, -1)))
    received = torch.zeros_like(x)
    dist.recv(received, (RANK - 1) % SIZE)
    sent.wait()
    assert out.eq(TOTAL).all()
    assert received.eq((RANK - 1) % SIZE + 1.0).all()


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
