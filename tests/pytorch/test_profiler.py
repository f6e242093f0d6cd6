"""Events of the backend "gradred" in torch.profiler."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, torch

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # names that torch 2.13 renamed


def profiled(calls: Callable[[], Any]) -> list[Any]:
    """The events of these calls: operations, and waits for them."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        calls()
    return [event for event in profile.events() if event.name.startswith("gradred")]


def names_of(events: list[Any]) -> Counter[str]:
    """How often each name occurs. Those of ways are left out: they depend on the transport."""
    return Counter(event.name for event in events if " by " not in event.name)


def ways_in(events: list[Any]) -> Counter[tuple[str, str]]:
    """The operations and the ways by which they went."""
    pairs = [event.name.removeprefix("gradred ").split(" by ") for event in events]
    return Counter((pair[0], pair[1]) for pair in pairs if len(pair) == 2)


def test_operations_and_the_waits_for_them_are_shown_by_torchs_names() -> None:
    x, whole = torch.ones(12), torch.empty(12 * SIZE)

    def calls() -> None:
        dist.all_reduce(x)
        work = dist.broadcast(x, 0, async_op=True)
        work.wait()
        work.wait()  # this adds no second event
        dist.all_gather_into_tensor(whole, x)
        dist.reduce(x, 0)  # one event, whatever calls it consists of
        dist.all_to_all(list(torch.empty(SIZE, 2)), list(torch.empty(SIZE, 2)))
        dist.barrier()

    seen = names_of(profiled(calls))
    names = ["all_reduce", "broadcast", "all_gather", "reduce", "all_to_all", "barrier"]
    assert seen == {f"gradred{verb}{name}": 1 for verb in (":", " waits for ") for name in names}


def test_operations_are_asynchronous_with_the_shapes_of_their_inputs() -> None:
    x, y = torch.ones(4, 3), torch.ones(5)
    rows = [torch.empty(5) for _ in range(SIZE)]

    def calls() -> None:
        dist.all_reduce(x)
        work = dist.all_gather(rows, y, async_op=True)
        time.sleep(0.05)  # the operation ends by itself
        work.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.all_reduce_coalesced([x, y])  # one event

    operations = [event for event in profiled(calls) if event.name.startswith("gradred:")]
    assert sorted((event.name, event.input_shapes) for event in operations) == [
        ("gradred:all_gather", [[5]]),
        ("gradred:all_reduce", [[4, 3]]),
        ("gradred:all_reduce", [[4, 3], [5]]),
    ]
    assert all(event.is_async for event in operations)


def test_several_gathered_at_once_are_one_operation() -> None:
    def calls() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = [[torch.empty(2), torch.empty(3)] for _ in range(SIZE)]
            dist.all_gather_coalesced(rows, [torch.ones(2), torch.ones(3)])

    seen = names_of(profiled(calls))
    assert seen == {"gradred:all_gather": 1, "gradred waits for all_gather": 1}


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_operations_that_fail_end_in_the_profile_too() -> None:
    def calls() -> None:
        # a refused call, and a mismatch
        for x in (torch.ones(8)[::2], torch.ones(3 + (RANK == 0))):
            with pytest.raises((ValueError, RuntimeError)):
                dist.all_reduce(x)

    assert names_of(profiled(calls))["gradred:all_reduce"] == 2


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_messages_are_shown() -> None:
    def calls() -> None:
        if RANK == 0:
            dist.send(torch.ones(4), 1)
            dist.send(torch.ones(4), 1)
        elif RANK == 1:
            dist.recv(torch.empty(4), 0)
            dist.recv(torch.empty(4))

    events = profiled(calls)
    expected = {0: ["send", "send"], 1: ["recv", "recvAnySource"]}.get(RANK, [])
    assert names_of(events) == Counter(
        f"gradred{verb}{name}" for verb in (":", " waits for ") for name in expected
    )
    assert all(event.is_async for event in events if ":" in event.name)


def test_the_exchange_of_ddp_is_shown_within_the_backward_pass() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 3))
    model(torch.ones(2, 8)).sum().backward()
    events = profiled(lambda: model(torch.ones(2, 8)).sum().backward())
    assert names_of(events)["gradred:all_reduce"] >= 1


SHORT = {"in line", "messages", "the MPI", "alone"}
LONG = {"slots", "chunks", "peers' memory", "messages", "the MPI", "alone"}


def test_each_operation_says_by_which_way_its_data_went() -> None:
    short, long = torch.ones(2), torch.ones(1 << 20)

    def calls() -> None:
        dist.all_reduce(short)
        dist.all_reduce(long)
        dist.all_reduce(long, async_op=True).wait()
        dist.all_reduce(torch.ones(0))  # has no data

    ways = ways_in(profiled(calls))
    assert sum(ways.values()) == 3
    assert {name for name, _ in ways} == {"all_reduce"}
    assert sum(count for (_, way), count in ways.items() if way in SHORT) >= 1
    assert sum(count for (_, way), count in ways.items() if way in LONG) >= 2


def test_ways_of_the_exchange_of_ddp_are_within_the_profile_of_its_step() -> None:
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(12))), bucket_cap_mb=1
    )

    def step() -> None:
        model(torch.ones(2, 300)).sum().backward()

    step()
    events = profiled(step)
    begun = names_of(events)["gradred:all_reduce"]
    assert begun >= 3
    ways = ways_in(events)
    assert sum(count for (name, _), count in ways.items() if name == "all_reduce") == begun
