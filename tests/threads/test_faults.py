"""Injected faults: their effect on the rank where they happen, and the errors of the others."""

from __future__ import annotations

import re
from time import monotonic
from typing import Any

import numpy as np
import pytest
from core_testing import now_ns, run_threads
from stepped import SteppedClock
from threads.reference import make_inputs, reduction, view

from gradred import errors, schedules
from gradred.errors import Error, PeerLost, TransportError, UsageError

SIZE = 4
COUNT = 1024  # a multiple of the size, so all messages have the same length
PROTOCOLS = pytest.mark.parametrize("rendezvous", [True, False], ids=["rendezvous", "eager"])
SLICES = pytest.mark.parametrize("slices", [1, 3])


def allreduce(name: str = "ring", **options: Any) -> tuple[list[Any], Any]:
    """The results of all ranks, and the right one."""
    inputs = make_inputs(SIZE, COUNT, "float32", "sum")
    wanted = reduction(inputs, "sum")
    run_threads(schedules.make_all(name, SIZE), view(inputs), "float32", "sum", **options)
    return inputs, wanted


def failures(error: BaseException) -> dict[int, str]:
    """The class of error of each rank that failed."""
    lines = re.findall(r"^rank (\d+): (\w+): ", str(error), re.MULTILINE)
    return {int(rank): kind for rank, kind in lines}


@PROTOCOLS
@pytest.mark.parametrize("name", schedules.names("allreduce")[:4])
def test_dropped_messages_end_in_a_timeout_error_at_the_deadline(
    name: str, rendezvous: bool, clock: SteppedClock
) -> None:
    start = now_ns()
    with clock.passing(20), pytest.raises(errors.TimeoutError) as caught:
        allreduce(name, fault="2:0:1:drop", rendezvous=rendezvous, timeout=60)
    assert now_ns() - start >= 60e9
    assert "deadline" in str(caught.value)


@PROTOCOLS
@SLICES
def test_stopped_rank_ends_in_a_timeout_error_for_all(
    rendezvous: bool, slices: int, clock: SteppedClock
) -> None:
    with clock.passing(20), pytest.raises(errors.TimeoutError) as caught:
        allreduce(fault="1:*:2:stop", rendezvous=rendezvous, slices=slices, timeout=60)
    assert failures(caught.value).keys() == set(range(SIZE))


@PROTOCOLS
@SLICES
def test_corrupted_messages_change_the_result(rendezvous: bool, slices: int) -> None:
    results, wanted = allreduce(fault="2:0:1:corrupt", rendezvous=rendezvous, slices=slices)
    changed = [int(np.sum(result != wanted)) for result in results]
    assert changed == [1] * SIZE  # one byte, reduced once and then passed on to all


@PROTOCOLS
@SLICES
@pytest.mark.parametrize("fault", ["2:0:1:delay:40", "*:*:*:delay:2"])
def test_delayed_messages_change_only_the_time(fault: str, rendezvous: bool, slices: int) -> None:
    start = monotonic()
    results, wanted = allreduce(fault=fault, rendezvous=rendezvous, slices=slices)
    rounds = 2 * (SIZE - 1)
    assert monotonic() - start >= (0.040 if fault.startswith("2") else 0.002 * rounds)
    for result in results:
        np.testing.assert_array_equal(result, wanted)


@PROTOCOLS
@SLICES
def test_dead_rank_is_an_error_on_all_others_before_the_deadline(
    rendezvous: bool, slices: int
) -> None:
    with pytest.raises(PeerLost, match="rank 2 failed") as caught:
        allreduce(fault="2:0:1:die", rendezvous=rendezvous, slices=slices, timeout=1000)
    assert failures(caught.value) == dict.fromkeys(range(SIZE), "PeerLost")


def test_fault_strikes_only_at_its_coordinate() -> None:
    for fault in ["9:*:*:die", "2:7:*:die", "2:0:99:die", "2:0:6:die"]:  # the ring has 6 rounds
        results, wanted = allreduce(fault=fault)
        for result in results:
            np.testing.assert_array_equal(result, wanted)


@PROTOCOLS
@SLICES
@pytest.mark.parametrize("name", schedules.names("allreduce")[:4])
def test_ranks_that_disagree_about_the_count_all_get_a_usage_error(
    name: str, rendezvous: bool, slices: int
) -> None:
    inputs = make_inputs(SIZE, 9, "int32", "sum")
    inputs[3] = make_inputs(SIZE, 12, "int32", "sum")[3]
    plans = schedules.make_all(name, SIZE)
    with pytest.raises(UsageError) as caught:
        run_threads(
            plans, view(inputs), "int32", "sum", slices=slices, rendezvous=rendezvous, timeout=20
        )
    assert failures(caught.value) == dict.fromkeys(range(SIZE), "UsageError")
    text = str(caught.value)
    assert re.search(r"rank 3 (asked )?for allreduce of 12 int32 with sum", text), text
    assert "allreduce of 9 int32 with sum" in text


def test_ranks_that_disagree_about_the_collective_get_a_usage_error() -> None:
    plans = schedules.make_all("binomial", 3, collective="bcast")
    plans[0] = schedules.make("ring", 0, 3)
    with pytest.raises(
        UsageError, match=r"disagree .*(allreduce|bcast) of 5 .*(allreduce|bcast) of 5 int32"
    ):
        run_threads(plans, view(make_inputs(3, 5, "int32", "sum")), "int32", "sum")


@PROTOCOLS
def test_messages_between_two_ranks_match_in_order(rendezvous: bool) -> None:
    def chunk(rank: int, number: int) -> schedules.Step:
        span = schedules.work(number)
        return schedules.send(1, span) if rank == 0 else schedules.recv(0, span)

    numbers = range(6)  # twice three in flight together
    plans = [
        schedules.Schedule(
            [[chunk(rank, n) for n in numbers[:3]], [chunk(rank, n) for n in numbers[3:]]],
            rank=rank,
            size=2,
            chunks=len(numbers),
            collective="bcast",
        )
        for rank in range(2)
    ]
    for _ in range(20):
        work = [np.arange(6, dtype=np.int32), np.zeros(6, dtype=np.int32)]
        run_threads(plans, view(work), "int32", "sum", rendezvous=rendezvous)
        np.testing.assert_array_equal(work[1], work[0])


def test_schedule_that_needs_buffering_hangs_under_rendezvous_alone(clock: SteppedClock) -> None:
    def both(rank: int) -> Any:
        peer, whole = 1 - rank, schedules.work(0)
        into = schedules.scratch(0, 0)
        rounds = [
            [schedules.send(peer, whole)],
            [schedules.recv(peer, into), schedules.reduce(into, whole)],
        ]
        return schedules.Schedule(rounds, rank=rank, size=2, chunks=1)

    inputs = make_inputs(2, 5, "int32", "sum")
    work = [array.copy() for array in inputs]
    run_threads([both(0), both(1)], view(work), "int32", "sum", rendezvous=False)
    np.testing.assert_array_equal(work[1], reduction(inputs, "sum"))
    with clock.passing(20), pytest.raises(errors.TimeoutError):
        run_threads([both(0), both(1)], view(work), "int32", "sum", timeout=60)


def test_messages_of_another_size_than_expected_are_an_internal_error() -> None:
    whole, part = schedules.work(0, 2), schedules.work(0, 1)
    plans = [
        schedules.Schedule([[schedules.send(1, whole)]], rank=0, size=2, chunks=2),
        schedules.Schedule([[schedules.recv(0, part)]], rank=1, size=2, chunks=2),
    ]
    with pytest.raises(Error, match="another size") as caught:
        run_threads(plans, view(make_inputs(2, 4, "int32", "sum")), "int32", "sum")
    assert not isinstance(caught.value, (UsageError, TransportError))


@pytest.mark.parametrize("fault", ["1:2", "a:0:0:drop", "0:0::drop", "0:0:0:boom", "0:0:0:delay:x"])
def test_malformed_fault_is_refused(fault: str) -> None:
    with pytest.raises(UsageError, match="should read rank:operation:round:kind"):
        allreduce(fault=fault)
