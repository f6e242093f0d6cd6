"""What torch.profiler shows of the backend "gradred"."""

from __future__ import annotations

from collections import Counter

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, torch

__all__ = ["group_of_all"]  # a fixture of this module


def seen_in(profile: torch.profiler.profile) -> Counter[str]:
    names = [event.name for event in profile.events()]
    return Counter(name for name in names if name.startswith("gradred:"))


def test_collectives_and_the_wait_for_them_are_shown_by_their_names() -> None:
    x, whole = torch.ones(12), torch.empty(12 * SIZE)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(x)
        work = dist.broadcast(x, 0, async_op=True)
        work.wait()
        work.wait()  # no second one
        dist.all_gather_into_tensor(whole, x)
        dist.barrier()
    seen = seen_in(profile)
    for name in ("all_reduce", "broadcast", "all_gather_single", "barrier"):
        assert seen[f"gradred:{name}"] == 1
        assert seen[f"gradred:{name}, wait"] == 1
    assert (x == SIZE).all()


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_messages_are_shown() -> None:
    got = torch.empty(4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        if RANK == 0:
            dist.send(torch.ones(4), 1)
        elif RANK == 1:
            dist.recv(got, 0)
    expected = {0: "send", 1: "recv"}
    names = [f"gradred:{expected[RANK]}"] if RANK in expected else []
    assert list(seen_in(profile)) == [*names, *(f"{name}, wait" for name in names)]


def test_the_exchange_of_ddp_is_shown_within_the_backward_pass() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 3))
    model(torch.ones(2, 8)).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(torch.ones(2, 8)).sum().backward()
    assert seen_in(profile)["gradred:all_reduce"] >= 1
