"""Groups of torch.distributed with some of the MPI's ranks, or with ranks in another order."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mpi4py import MPI
from pytorch.groups import RANK, SIZE, dist, torch

from gradred.errors import UsageError

pytestmark = pytest.mark.skipif(SIZE == 1, reason="takes several ranks")
WORLD = MPI.COMM_WORLD
LIMIT = datetime.timedelta(seconds=30)


@contextmanager
def group_of(world_ranks: list[int]) -> Iterator[bool]:
    """torch's group of these ranks, numbered in this order; yields whether this rank is in it."""
    folder = WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None)
    if RANK in world_ranks:
        dist.init_process_group(
            "gradred",
            init_method=f"file://{folder}/store",
            rank=world_ranks.index(RANK),
            world_size=len(world_ranks),
            timeout=LIMIT,
        )
        yield True
        dist.destroy_process_group()
    else:
        yield False
    WORLD.Barrier()


ORDERS = {
    "but the first": list(range(1, SIZE)),
    "but the last": list(range(SIZE - 1)),
    "all in another order": [*range(1, SIZE), 0],
    "some, the last first": list(range(SIZE - 1, 0, -1)),
}


@pytest.mark.parametrize("which", ORDERS)
def test_ranks_have_the_numbers_that_the_program_gives_them(which: str) -> None:
    order = ORDERS[which]
    with group_of(order) as included:
        if not included:
            return
        assert dist.get_rank() == order.index(RANK)
        found = [torch.empty(1, dtype=torch.int64) for _ in order]
        dist.all_gather(found, torch.tensor([RANK]))
        assert [int(one) for one in found] == order
        x = torch.full((3000,), float(RANK))
        dist.all_reduce(x)
        assert (x == sum(order)).all()
        first = torch.tensor([RANK])
        dist.broadcast(first, src=len(order) - 1)
        assert int(first) == order[-1]
        ends = {len(order) - 1, 0}
        pair = dist.new_group([*ends])  # torch sorts them
        if dist.get_rank() in ends:
            dist.all_reduce(y := torch.ones(2), group=pair)
            assert y.tolist() == [len(ends)] * 2


@pytest.mark.parametrize("which", ORDERS)
def test_messages_go_to_the_numbers_that_the_program_gives(which: str) -> None:
    order = ORDERS[which]
    with group_of(order) as included:
        if not included or len(order) == 1:
            return
        own, size = dist.get_rank(), dist.get_world_size()
        came = torch.zeros(1, dtype=torch.int64)
        sent = dist.isend(torch.tensor([RANK]), (own + 1) % size)
        dist.recv(came, (own - 1) % size)
        sent.wait()
        assert int(came) == order[own - 1]


def test_the_other_ranks_may_do_something_else_meanwhile() -> None:
    if RANK == 0:
        for rank in range(1, SIZE):
            WORLD.send(rank * 10, rank)
    with group_of(list(range(1, SIZE))) as included:
        if not included:
            return
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        model(torch.full((1, 2), float(WORLD.recv(source=0)))).sum().backward()
        gradient = next(model.parameters()).grad
        mean = 10 * sum(range(1, SIZE)) / (SIZE - 1)
        assert torch.allclose(gradient, torch.full((1, 2), mean))


@pytest.mark.skipif(SIZE < 3, reason="takes a group of several ranks, and others")
def test_errors_have_these_numbers_and_the_launchers() -> None:
    with group_of(list(range(1, SIZE))) as included:
        if not included:
            return
        with pytest.raises(UsageError) as found:
            dist.all_reduce(torch.ones(2 + (RANK == SIZE - 1)))
        assert f"rank {SIZE - 2} (COMM_WORLD rank {SIZE - 1}) has float32 [3]" in str(found.value)
