"""Ranks whose group goes on with other ranks, by torch's `reconfigure`: one check after the other.

    python torch_reconfiguring.py PORT RANK SIZE

The ranks exchange their handles by a store at PORT. RANK and SIZE are empty where a launcher
sets variables for them. Each rank writes to the store, for each check, None or what went wrong.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist

import gradred

LIMIT = datetime.timedelta(seconds=20)
CHECKS: list[Callable[[Rank], None]] = []


class Rank:
    """This rank of one check, and what it exchanges with the others."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.store, self.first, self.size = store, rank, size
        self.turns: dict[str, int] = {}
        dist.init_process_group(
            "gradred", store=store, rank=rank, world_size=size, timeout=LIMIT, **ENABLED
        )
        self.group = dist.group.WORLD
        self.backend = dist.get_backend_impl(self.group)

    def all_handles(self, place: int | None = None) -> list[str]:
        """The handles of all processes, by the place that each one names; its first rank if not."""
        place = self.first if place is None else place
        turn = self.turns["handles"] = self.turns.get("handles", 0) + 1
        self.store.set(f"turn {turn} of {place}", dist._get_reconfigure_handle())
        return [self.store.get(f"turn {turn} of {one}").decode() for one in range(self.size)]

    def all_are_here(self) -> None:
        """Wait until all processes have come here, whether they are in the group or not."""
        turn = self.turns["here"] = self.turns.get("here", 0) + 1
        if self.store.add(f"here {turn}", 1) == self.size:
            self.store.set(f"all here {turn}", "")
        self.store.wait([f"all here {turn}"], LIMIT)

    def all_together(self, uuid: int) -> list[str]:
        handles = self.all_handles()
        reconfigure(uuid, handles)
        assert numbers() == (self.first, self.size)
        return handles


ENABLED = {"enable_reconfigure": True}


def reconfigure(uuid: int, handles: list[str] | set[str], **more: object) -> None:
    work = dist._reconfigure(uuid, handles, **{"timeout": LIMIT, **more})
    assert work.wait()
    assert work.is_completed()


def numbers() -> tuple[int, int]:
    group = dist.group.WORLD
    found = dist.get_rank(), dist.get_world_size()
    assert found == (group.rank(), group.size())
    assert dist.get_process_group_ranks(group) == list(range(found[1]))
    return found


def sums() -> None:
    """All members add their numbers, and each has the right sum."""
    rank, size = numbers()
    x = torch.full((5,), rank + 1.0)
    dist.all_reduce(x)
    assert x.tolist() == [size * (size + 1) / 2] * 5, x
    dist.all_reduce(x, async_op=True).wait()
    assert x[0] == size * size * (size + 1) / 2, x


def check(function: Callable[[Rank], None]) -> Callable[[Rank], None]:
    CHECKS.append(function)
    return function


def raises(kind: type[BaseException], text: str, call: Callable[[], object]) -> None:
    found = None
    try:
        call()
    except kind as error:
        found = str(error)
    assert found is not None, f"no {kind.__name__} with {text!r}"
    assert text in found, found


@check
def handles_in_order_give_the_numbers(rank: Rank) -> None:
    assert dist._supports_reconfigure()
    assert rank.backend.supports_reconfigure
    handles = rank.all_handles()
    assert len(set(handles)) == rank.size
    reconfigure(1, handles[::-1])
    assert numbers() == (rank.size - 1 - rank.first, rank.size)
    assert (rank.backend.rank(), rank.backend.size()) == numbers()


@check
def a_set_of_handles_gives_each_rank_a_number(rank: Rank) -> None:
    reconfigure(1, set(rank.all_handles()))
    found: list[int | None] = [None] * rank.size
    dist.all_gather_object(found, dist.get_rank())
    assert found == list(range(rank.size))


@check
def before_the_first_time_there_are_no_ranks(rank: Rank) -> None:
    x = torch.ones(3)
    for call in (
        lambda: dist.all_reduce(x),
        lambda: dist.all_reduce(x, async_op=True),
        lambda: dist.broadcast(x, 0),
        lambda: dist.send(x, (rank.first + 1) % rank.size),
        dist.barrier,
    ):
        for _ in range(2):
            raises(gradred.UsageError, "Call reconfigure first", call)
    assert x.tolist() == [1, 1, 1]
    rank.all_together(1)
    sums()


@check
def collectives_run(rank: Rank) -> None:
    rank.all_together(1)
    sums()
    found: list[int | None] = [None] * rank.size
    dist.all_gather_object(found, rank.first)
    assert found == list(range(rank.size))
    dist.monitored_barrier(timeout=LIMIT)


@check
def messages_travel_in_a_ring(rank: Rank) -> None:
    rank.all_together(1)
    own, size = numbers()
    given, taken = torch.full((4,), own + 1.0), torch.zeros(4)
    works = [rank.backend.send([given], (own + 1) % size, 0)]
    works.append(rank.backend.recv([taken], (own - 1) % size, 0))
    for work in works:
        work.wait()
    assert taken.tolist() == [(own - 1) % size + 1.0] * 4


def without(rank: Rank, left_out: int) -> None:
    handles = rank.all_together(1)
    sums()
    if rank.first != left_out:
        reconfigure(2, handles[:left_out] + handles[left_out + 1 :])
        assert numbers() == (rank.first - (rank.first > left_out), rank.size - 1)
        sums()
        x = torch.full((4,), 7.0 if dist.get_rank() == 0 else 0.0)
        dist.broadcast(x, 0)
        assert x.tolist() == [7.0] * 4
    rank.all_are_here()


@check
def the_last_rank_is_left_out(rank: Rank) -> None:
    without(rank, rank.size - 1)


@check
def a_rank_in_the_middle_is_left_out(rank: Rank) -> None:
    without(rank, rank.size // 2)


@check
def who_is_left_out_gets_an_error(rank: Rank) -> None:
    handles = rank.all_together(1)
    if rank.first:
        reconfigure(2, handles[1:])
        rank.all_are_here()
    else:
        rank.all_are_here()
        raises(gradred.Error, "left", lambda: dist.all_reduce(torch.ones(2)))


def alone(rank: Rank, uuid: int) -> None:
    reconfigure(uuid + rank.first, [dist._get_reconfigure_handle()])
    assert numbers() == (0, 1)
    sums()


@check
def ranks_are_alone_then_together_then_alone(rank: Rank) -> None:
    alone(rank, 10)
    rank.all_together(20)
    alone(rank, 30)
    rank.all_are_here()


@check
def ranks_that_were_alone_sum(rank: Rank) -> None:
    alone(rank, 10)
    rank.all_together(20)
    sums()


@check
def the_same_ranks_meet_again(rank: Rank) -> None:
    for uuid in range(1, 5):
        rank.all_together(uuid)
        sums()


@check
def ranks_come_later(rank: Rank) -> None:
    handles = rank.all_handles()
    if rank.first == 0:
        reconfigure(1, handles[:1])
        sums()
    rank.all_together(2)
    sums()


def comes_again(rank: Rank, left_out: int) -> None:
    handles = rank.all_together(1)
    if rank.first != left_out:
        reconfigure(2, handles[:left_out] + handles[left_out + 1 :])
        sums()
    rank.all_together(3)
    sums()


@check
def the_last_rank_leaves_and_comes_again(rank: Rank) -> None:
    comes_again(rank, rank.size - 1)


@check
def a_rank_in_the_middle_leaves_and_comes_again(rank: Rank) -> None:
    comes_again(rank, rank.size // 2)


@check
def each_rank_leaves_once_and_comes_again_as_the_last(rank: Rank) -> None:
    rank.all_together(1)
    last = rank.size - 1
    for turn in range(rank.size):
        own = dist.get_rank()
        handles = rank.all_handles(own)
        if own != turn:
            reconfigure(2 + 2 * turn, handles[:turn] + handles[turn + 1 :])
            sums()
        handles = rank.all_handles(last if own == turn else dist.get_rank())
        reconfigure(3 + 2 * turn, handles)
        assert own != turn or dist.get_rank() == last
        sums()


@check
def two_groups_become_one(rank: Rank) -> None:
    handles, split = rank.all_handles(), rank.size // 2
    if rank.first < split:
        reconfigure(1, handles[:split])
    else:
        reconfigure(2, handles[split:])
    sums()
    rank.all_together(3)
    sums()


@check
def a_group_that_was_aborted_goes_on(rank: Rank) -> None:
    errors = torch._C._distributed_c10d.ErrorType
    rank.all_together(1)
    sums()
    rank.backend.abort()
    assert rank.backend.get_error() == errors.COMM_ERROR
    rank.all_together(2)
    assert rank.backend.get_error() == errors.SUCCESS
    sums()


@check
def a_group_goes_on_after_a_time_out(rank: Rank) -> None:
    rank.all_together(1)
    sums()
    if rank.first == 1:
        rank.backend.set_timeout(datetime.timedelta(milliseconds=50))
        work = dist.all_reduce(torch.ones(4), async_op=True)
        raises(gradred.TimeoutError, "Timed out", work.wait)
        rank.backend.set_timeout(LIMIT)
    rank.all_are_here()
    rank.all_together(2)
    sums()
    if rank.first == 1:  # the operation of the former group never ends well
        raises(gradred.Error, "left", work.wait)


@check
def a_number_is_good_for_one_time(rank: Rank) -> None:
    alone(rank, 10)
    again = 10 + rank.first
    raises(RuntimeError, "already used", lambda: alone(rank, again - rank.first))
    sums()


@check
def a_refused_number_leaves_the_group_as_it_is(rank: Rank) -> None:
    handles = rank.all_together(1)
    last = rank.size - 1
    if rank.first != last:
        reconfigure(2, handles[:last])
        raises(RuntimeError, "already used", lambda: reconfigure(2, handles))
        sums()
    reconfigure(3, rank.all_handles())
    sums()


@check
def handles_are_checked(rank: Rank) -> None:
    handles = rank.all_together(1)
    own = handles[rank.first]
    others = [one for one in handles if one != own]
    for given, text in ((others, "0 are this rank's"), ([own, *others, others[0]], "twice")):
        raises(gradred.UsageError, text, lambda given=given: reconfigure(2, given))
    hints = {"quorum": "7"}
    raises(gradred.UsageError, "quorum", lambda: reconfigure(2, handles, hints=hints))
    sums()
    reconfigure(2, handles)
    sums()


@check
def who_does_not_come_is_named_in_time(rank: Rank) -> None:
    handles = rank.all_together(1)
    if rank.first:
        limit, begin = datetime.timedelta(seconds=0.5), time.monotonic()
        raises(gradred.TimeoutError, "0", lambda: reconfigure(2, handles, timeout=limit))
        assert 0.4 < time.monotonic() - begin < 10
    rank.all_are_here()
    sums()  # the group is as before
    reconfigure(3, rank.all_handles())
    sums()


@check
def new_groups_have_the_present_ranks(rank: Rank) -> None:
    handles = rank.all_together(1)
    if rank.first:
        reconfigure(2, handles[1:])
        part = dist.new_group([0])
        if dist.get_rank() == 0:
            x = torch.ones(2)
            dist.all_reduce(x, group=part)
        everyone = dist.new_group()
        x = torch.ones(2)
        dist.all_reduce(x, group=everyone)
        assert x.tolist() == [rank.size - 1.0] * 2
    rank.all_are_here()


@check
def a_rank_that_comes_takes_part_in_new_groups(rank: Rank) -> None:
    handles, last = rank.all_handles(), rank.size - 1
    if rank.first != last:
        reconfigure(1, handles[:last])
        for _ in range(3):
            dist.new_group()
        dist.split_group(None, [[0, 1]])
    reconfigure(2, handles)
    for made in (dist.new_group(), dist.split_group(None, [list(range(rank.size))])):
        x = torch.ones(2)
        dist.all_reduce(x, group=made)
        assert x.tolist() == [rank.size] * 2
    part = dist.split_group(None, [[0, 1]])
    if rank.first < 2:
        x = torch.ones(2)
        dist.all_reduce(x, group=part)
        assert x.tolist() == [2.0, 2.0]
    sums()


@check
def nothing_is_carried_out_before_the_first_time(rank: Rank) -> None:
    calls = (dist.barrier, dist.monitored_barrier, lambda: dist.all_reduce(torch.ones(1)))
    for call in calls:
        raises(gradred.UsageError, "Call reconfigure first", call)
    raises(gradred.UsageError, "are not connected yet", lambda: dist._new_window())
    assert rank.backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS


def made_as_usual(rank: Rank) -> None:
    dist.destroy_process_group()
    store = dist.PrefixStore("as usual", rank.store)
    dist.init_process_group(
        "gradred", store=store, rank=rank.first, world_size=rank.size, timeout=LIMIT
    )
    sums()


@check
def a_group_that_was_made_as_usual_goes_on_too(rank: Rank) -> None:
    made_as_usual(rank)
    without(rank, 0)


@check
def groups_shrink(rank: Rank) -> None:
    made_as_usual(rank)
    left = rank.size
    while rank.first < left and left > 1:
        left -= 1
        if rank.first == left:
            break
        group = dist.shrink_group([left], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
        assert (dist.get_rank(), dist.get_world_size()) == (rank.first, left)
        assert group is dist.group.WORLD
        x = torch.full((3,), rank.first + 1.0)
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        assert x.tolist() == [left * left * (left + 1) / 2] * 3
        one = dist.split_group(None, [[0], list(range(1, left))][: min(left, 2)])
        dist.all_reduce(x, group=one)
        assert one.size() == (1 if rank.first == 0 else left - 1)
        assert not dist._supports_reconfigure()
        assert not dist._supports_window()
        raises(gradred.UsageError, "dist.new_group()", dist._new_window)
        assert dist._supports_window(dist.new_group())
        raises(RuntimeError, "shrink_group", dist._get_reconfigure_handle)
    rank.all_are_here()


def main(port: int, own: int, size: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, None, False, LIMIT)
    found: dict[str, str | None] = {}
    for one in CHECKS:
        try:
            one(Rank(dist.PrefixStore(one.__name__, store), own, size))
            found[one.__name__] = None
        except Exception:
            found[one.__name__] = traceback.format_exc()
        dist.destroy_process_group()
    store.set(f"found by {own}", json.dumps(found))


if __name__ == "__main__":
    port, rank, size = sys.argv[1:]
    main(int(port), int(rank or os.environ["RANK"]), int(size or os.environ["WORLD_SIZE"]))
