"""Operations that a program starts in callbacks of futures, in another order on each rank."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, torch

__all__ = ["group_of_all"]  # a fixture of this module

SUM_OF_RANKS = SIZE * (SIZE - 1) / 2


def started(value: float) -> Any:
    return dist.all_reduce(torch.full((3,), value), async_op=True)


def sum_of(work: Any) -> float:
    return float(work.get_future().wait()[0][0])


def let_end(work: Any) -> None:
    """Wait for the end, as if the rank came late: later callbacks then run at once."""
    while not work.is_completed():
        time.sleep(0.001)
    work.get_future().wait()


@pytest.mark.parametrize("late", range(-1, SIZE))
def test_what_a_callback_starts_meets_its_like(late: int) -> None:
    """Callbacks of four operations; the rank `late` adds its own when these have ended."""

    def double_sum(_: Any) -> float:
        return sum_of(started(2.0 * RANK))

    futures = []
    for index in range(4):
        work = started(float(RANK + index))
        if late == RANK:
            let_end(work)
        first = work.get_future().then(lambda done: float(done.value()[0][0]))
        second = work.get_future().then(double_sum)
        third = second.then(lambda done: (done.value(), sum_of(started(3.0 * RANK))))
        futures.append((first, third))
    for index, (first, third) in enumerate(futures):
        assert first.wait() == SUM_OF_RANKS + SIZE * index
        assert third.wait() == (2 * SUM_OF_RANKS, 3 * SUM_OF_RANKS)
    assert sum_of(started(1.0)) == SIZE  # the group's own numbers have not changed


def test_callbacks_of_what_a_callback_has_started() -> None:
    def start(index: int) -> Any:
        def begin(_: Any) -> Any:
            inner = started(float(RANK + 10 * index)).get_future()
            return inner.then(lambda done: float(done.value()[0][0]) + sum_of(started(0.5))).wait()

        return begin

    order = range(3) if RANK % 2 else reversed(range(3))  # the order of their ends, if it matters
    works = [started(float(index)) for index in range(3)]
    futures = {}
    for index in order:
        futures[index] = works[index].get_future().then(start(index))
    sums = {index: future.wait() for index, future in futures.items()}
    assert sums == {index: SUM_OF_RANKS + 10 * index * SIZE + 0.5 * SIZE for index in range(3)}


def test_an_operation_of_another_group_in_a_done_callback() -> None:
    other = dist.new_group(backend="gradred")
    found: list[float] = []

    def note(_: Any) -> None:
        value = torch.full((2,), float(RANK))
        dist.all_reduce(value, group=other)
        found.append(float(value[1]))

    futures = [started(1.0).get_future() for _ in range(3)]
    for future in futures[:: -1 if RANK else 1]:
        future.add_done_callback(note)
    end = time.monotonic() + 20
    while len(found) < 3 and time.monotonic() < end:
        time.sleep(0.001)
    assert found == [SUM_OF_RANKS] * 3
    dist.destroy_process_group(other)


def test_each_group_counts_for_itself_in_a_callback() -> None:
    """As when the first ranks of hosts reduce among themselves, and then send to the others."""
    first, everyone = dist.new_group([0], backend="gradred"), dist.new_group(backend="gradred")

    def in_two_steps(_: Any) -> float:
        value = torch.full((2,), float(RANK))
        if RANK == 0:
            dist.all_reduce(value, group=first)
        dist.all_reduce(value, group=everyone)
        return float(value[1])

    assert started(1.0).get_future().then(in_two_steps).wait() == SUM_OF_RANKS
    if RANK == 0:
        dist.destroy_process_group(first)
    dist.destroy_process_group(everyone)


@pytest.mark.parametrize("late", [-1, 0])
def test_callbacks_of_a_programs_own_futures_count_as_what_has_added_them(late: int) -> None:
    def start(_: Any) -> float:
        return sum_of(started(float(RANK)))

    own: Any = torch.futures.Future()
    sums = own.then(start)
    work = started(1.0)
    if late == RANK:
        let_end(work)
    completed: Any = threading.Event()
    work.get_future().add_done_callback(lambda _: (own.set_result(None), completed.set()))
    assert completed.wait(20)
    assert sums.wait() == SUM_OF_RANKS


@pytest.mark.parametrize("late", [-1, 0])
def test_a_callback_that_adds_another_one_to_its_argument(late: int) -> None:
    def add(done: Any) -> Any:
        return done.then(lambda _: sum_of(started(float(RANK))))

    work = started(1.0)
    if late == RANK:
        let_end(work)
    sums = work.get_future().then(lambda _: 1).then(add).wait()
    assert sums.wait() == SUM_OF_RANKS


def test_names_of_callbacks_of_callbacks_stay_short() -> None:
    names: list[str] = []

    def again(depth: int) -> Any:
        def start(_: Any) -> Any:
            work = started(float(RANK))
            names.append(work._requests[0].name)
            if depth == 30:
                return sum_of(work)
            return work.get_future().then(again(depth + 1)).wait()

        return start

    assert again(0)(None) == SUM_OF_RANKS
    assert len(set(names)) == 31
    assert max(map(len, names)) < 130


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_a_mismatch_in_a_callback_is_raised_where_it_is_waited_for() -> None:
    def differ(_: Any) -> None:
        dist.all_reduce(torch.zeros(2 + (RANK == 0)))

    future = started(1.0).get_future().then(differ)
    with pytest.raises(RuntimeError, match="operation 1 of callback 1 of operation"):
        future.wait()
    assert sum_of(started(1.0)) == SIZE


def test_other_futures_are_torchs_own() -> None:
    future: Any = torch.futures.Future()
    child = future.then(lambda done: done.value() + 1)
    future.set_result(1)
    assert child.wait() == 2
