"""Errors in a group of some ranks name these by the numbers of `dist.get_rank()`."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, torch

from gradred.errors import UsageError

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = [
    pytest.mark.skipif(SIZE < 3, reason="takes a group of several ranks, and others"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # names that torch 2.13 renamed
]
LAST = SIZE - 1
SHORT = datetime.timedelta(seconds=0.3)
# every half second hosts ask each other which ranks are missing
LIMIT = datetime.timedelta(seconds=1.5)


@pytest.fixture(scope="module")
def but_first(group_of_all: None) -> Any:
    return dist.new_group(list(range(1, SIZE)))


@pytest.fixture(autouse=True)
def together(group_of_all: None) -> Iterator[None]:
    yield
    dist.barrier()


def requires(found: pytest.ExceptionInfo[BaseException], *texts: str) -> None:
    said = str(found.value)
    assert all(text in said for text in texts), said
    assert "rank 0" not in said.lower(), said
    assert "COMM_WORLD" not in said, said


def test_tensors_that_differ(but_first: Any) -> None:
    if RANK == 0:
        return
    with pytest.raises(UsageError) as found:
        dist.all_reduce(torch.ones(3 if RANK == LAST else 2), group=but_first)
    requires(found, f"rank {LAST} has float32 [3]")


def test_roots_that_differ(but_first: Any) -> None:
    if RANK == 0:
        return
    root = LAST if RANK == LAST else 1
    with pytest.raises(UsageError) as found:
        dist.broadcast(torch.ones(2), src=root, group=but_first)
    requires(found, f"rank {LAST} has {LAST}", " has 1", f"from root {root}")


def test_a_rank_that_has_not_come(but_first: Any) -> None:
    if RANK not in (0, LAST):
        work = dist.all_reduce(torch.ones(2), group=but_first, async_op=True)
        with pytest.raises(RuntimeError) as found:
            work.wait(LIMIT)
    dist.barrier()
    if RANK == LAST:
        dist.all_reduce(torch.ones(2), group=but_first)
    elif RANK != 0:
        requires(found, f"which has not been submitted by rank {LAST}")


def test_a_message_that_does_not_come() -> None:
    group = dist.new_group(list(range(1, SIZE)))
    if RANK == 1:
        work = dist.irecv(torch.ones(2), LAST, group=group)
        with pytest.raises(RuntimeError) as found:
            work.wait(SHORT)
    dist.barrier()
    if RANK == LAST:
        dist.send(torch.ones(2), 1, group=group)
    if RANK == 1:
        work.wait()
        requires(found, f"recv from rank {LAST}")


def test_monitored_barrier(but_first: Any) -> None:
    if RANK not in (0, LAST):
        with pytest.raises(RuntimeError) as found:
            dist.monitored_barrier(but_first, SHORT, wait_all_ranks=True)
        if RANK == 1:
            requires(found, f"Rank {LAST} failed to pass monitoredBarrier")
        else:
            requires(found, f"Rank {RANK} successfully reached", "from rank 1")


def test_arguments_that_a_rank_refuses(but_first: Any) -> None:
    if RANK == 0:
        return
    outputs = [torch.ones(2) for _ in range(SIZE - 1 - (RANK == LAST))]
    with pytest.raises(UsageError) as found:
        dist.all_gather(outputs, torch.ones(2), group=but_first)
    if RANK != LAST:
        requires(found, f"rank {LAST} has refused its arguments")


def test_the_group_of_all_has_the_same_numbers() -> None:
    with pytest.raises(UsageError) as found:
        dist.all_reduce(torch.ones(2 + (RANK == LAST)))
    assert re.search(rf"rank {LAST} has float32 \[3\]", str(found.value)), found
    assert "COMM_WORLD" not in str(found.value)
