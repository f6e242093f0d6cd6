"""torch.distributed with the backend "gradred": works, futures, time limits, errors, threads."""

from __future__ import annotations

import datetime
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, learned, since, torch
from torch.distributed.distributed_c10d import AllgatherOptions

import gradred
from gradred.torch_distributed.work import GradredWork

__all__ = ["group_of_all"]  # a fixture of this module
TOTAL = SIZE * (SIZE + 1) // 2
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # names that torch 2.13 renamed


@pytest.mark.skipif(SIZE == 1, reason="takes ranks that take different ways")
def test_a_refused_operation_counts_whatever_way_it_takes() -> None:
    class Special(torch.Tensor):
        """A type that goes through the Python reader."""

    x = torch.ones(5)
    mine = x if RANK == 0 else x.as_subclass(Special)
    with pytest.raises(ValueError, match="band is not defined for float32"):
        dist.all_reduce(mine, op=dist.ReduceOp.BAND)
    dist.all_reduce(mine)
    assert (x == SIZE).all()


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_messages_may_go_to_leaves_and_be_waited_for_again() -> None:
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = learned(2, 3)
    works = [dist.irecv(got, left), dist.isend(torch.full((2, 3), RANK + 1.0), right)]
    for work in works * 2:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
    assert (got == left + 1).all()


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
@pytest.mark.parametrize("room", [0, 2, 5])
@pytest.mark.parametrize("is_early", [False, True])
def test_messages_that_do_not_fit_are_an_error(room: int, is_early: bool) -> None:
    if RANK == 0:
        dist.send(torch.ones(3), 1, tag=1)
        dist.send(torch.ones(300_000), 1, tag=2)
    elif RANK == 1:
        x = torch.empty(300_000)
        if is_early:
            dist.recv(x, 0, tag=2)
        with pytest.raises(ValueError, match=r"recv from rank 0: .*(more|12 bytes) have come"):
            dist.recv(torch.empty(room), 0, tag=1)
        if not is_early:
            dist.recv(x, 0, tag=2)
        assert (x == 1).all()
    dist.barrier()


LENGTHS = [0, 1, 3, 17, 4_000, 16_384, 16_385, 70_000, 1_000_003]


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
@pytest.mark.parametrize("seed", range(6))
def test_messages_of_any_length_come_in_any_order(seed: int) -> None:
    """Each rank sends some messages to each other one, and starts its sends and receives mixed."""
    dice = random.Random(seed)
    messages = [
        (source, to, tag, dice.choice(LENGTHS), number)
        for number in range(4)
        for source in range(SIZE)
        for to in range(SIZE)
        if source != to
        for tag in [dice.randrange(3)]
    ]

    def content(number: int, source: int, length: int) -> Any:
        return (torch.arange(length) * 7 + number + 10 * source).to(torch.uint8)

    here = random.Random(seed + 100 * RANK)
    sends = [one for one in messages if one[0] == RANK]
    gets = [one for one in messages if one[1] == RANK]
    for some in (sends, gets):  # messages of two ranks with one tag stay in their order
        by_tag: dict[Any, list[Any]] = {}
        for one in some:
            by_tag.setdefault(one[:3], []).append(one)
        keys = [one[:3] for one in some]
        here.shuffle(keys)
        some[:] = [by_tag[key].pop(0) for key in keys]
    calls = [("send", one) for one in sends] + [("get", one) for one in gets]
    turns = [kind for kind, _ in calls]
    here.shuffle(turns)
    works, wanted = [], []
    for kind in turns:
        source, to, tag, length, number = (sends if kind == "send" else gets).pop(0)
        if kind == "send":
            works.append(dist.isend(content(number, source, length), to, tag=tag))
        else:
            x = torch.zeros(length, dtype=torch.uint8)
            works.append(dist.irecv(x, source, tag=tag))
            wanted.append((x, content(number, source, length)))
        if here.random() < 0.2:
            time.sleep(0.001)
    here.shuffle(works)
    for work in works:
        if here.random() < 0.3:
            while not work.is_completed():
                time.sleep(0)
        work.wait()
    for x, expected in wanted:
        assert torch.equal(x, expected)


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_messages_from_anyone() -> None:
    if RANK > 0:
        tensors = [torch.full((50_000,), float(10 * RANK + turn)) for turn in range(3)]
        for work in [dist.isend(x, 0, tag=turn) for turn, x in enumerate(tensors)]:
            work.wait()
    else:
        for turn in (2, 0, 1):
            found = set()
            for _ in range(SIZE - 1):
                x = torch.empty(50_000)
                source = dist.recv(x, tag=turn)
                assert (x == 10 * source + turn).all()
                found.add(source)
            assert found == set(range(1, SIZE))
    dist.barrier()


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_messages_that_nobody_waits_for_arrive() -> None:
    if type(dist.group.WORLD._messages).__name__ == "OfMpi":
        pytest.skip("the MPI carries messages on while somebody calls it")
    if RANK == 0:
        dist.isend(torch.full((2_000_000,), 3.0), 1)  # the program drops both works
    elif RANK == 1:
        x = torch.zeros(2_000_000)
        dist.irecv(x, 0)
        begin = time.monotonic()
        while x[-1] != 3 and time.monotonic() - begin < 30:
            time.sleep(0.001)
        assert (x == 3).all()
    dist.barrier()


@pytest.mark.skipif(SIZE == 1, reason="takes ranks that differ")
def test_what_is_moved_is_known_by_its_type() -> None:
    x = torch.ones(3, dtype=torch.int32 if RANK == 0 else torch.float32)
    with pytest.raises(ValueError, match=r"Mismatched data types.*int32"):
        dist.broadcast(x, 0)
    with pytest.raises(ValueError, match=r"float32 \[3\] from root 0"):
        dist.broadcast(torch.ones(3), 0) if RANK else dist.barrier()


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_futures_of_messages_do_not_block_and_become_complete_by_themselves() -> None:
    apart = dist.new_group()
    if RANK == 0:
        work = dist.irecv(torch.empty(3), 1)
        future = work.get_future()
        assert not work.is_completed()
    dist.barrier(group=apart)
    if RANK == 1:
        dist.send(torch.full((3,), 8.0), 0)
    if RANK == 0:
        begin = time.monotonic()
        while not work.is_completed() and time.monotonic() - begin < 10:
            time.sleep(0.001)
        assert work.is_completed()
        assert (future.wait()[0] == 8).all()


def _gathered_in_place(x: Any) -> None:
    whole = x.repeat(SIZE).zero_()
    part = whole[RANK * len(x) : (RANK + 1) * len(x)].copy_(x)
    dist.all_gather_into_tensor(whole, part)
    assert whole.sum() == TOTAL * len(x)


WAITING: dict[str, Callable[[Any], Any]] = {
    "all_reduce": dist.all_reduce,
    "broadcast": lambda x: dist.broadcast(x, SIZE - 1),
    "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(x.repeat(SIZE), x),
    "all_gather_into_tensor in place": _gathered_in_place,
    "reduce_scatter_tensor": lambda x: dist.reduce_scatter_tensor(x, x.repeat(SIZE)),
}


@since(2, 13)  # whose options say whether the program waits
@pytest.mark.parametrize("name", WAITING)
def test_calls_that_wait_make_no_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a work is made")

    WAITING[name](torch.full((5,), RANK + 1.0))  # the first call looks at the group
    monkeypatch.setattr(GradredWork, "__init__", made)
    for dtype in (torch.float32, torch.int64):
        x = torch.full((5,), RANK + 1, dtype=dtype)
        before = x._version
        WAITING[name](x)
        if name in ("all_reduce", "reduce_scatter_tensor"):
            assert (x == TOTAL).all(), x
        if name == "broadcast":
            assert (x == SIZE).all(), x
        writes = "gather" not in name and (name != "broadcast" or RANK != SIZE - 1)
        assert x._version == before + writes  # autograd knows


def test_works_and_futures() -> None:
    tensors = [torch.full((n,), float(RANK)) for n in (1, 1000, 200_000)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    futures = [work.get_future() for work in works]
    doubled = futures[1].then(lambda future: future.value()[0] * 2)
    for work, x in reversed(list(zip(works, tensors, strict=True))):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert (x == SIZE * (SIZE - 1) / 2).all()
    assert (doubled.wait() == SIZE * (SIZE - 1)).all()


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_works_that_cpp_makes_of_ours_serve_wait_and_futures() -> None:
    """A call of torch's class takes the way of C++'s callers.

    The work that comes back is C++'s, where C++ keeps the Python half of a work alive.
    """
    group = dist.group.WORLD

    def start(x: Any) -> Any:
        work = dist.ProcessGroup.allreduce(group, [x])
        if torch.torch_version.TorchVersion(torch.__version__) >= (2, 13):
            assert type(work).__name__ != "GradredWork"
        return work

    x = torch.ones(1000)
    assert start(x).wait()
    assert (x == SIZE).all()
    for _ in range(20):  # nothing but the future keeps the operation
        x = torch.ones(1000)
        (value,) = start(x).get_future().wait()
        assert value is x or (value == SIZE).all()
    works = [start(torch.ones(10)) for _ in range(20)]
    total = torch.futures.collect_all([work.get_future() for work in works]).then(
        lambda all_of_them: sum(float(one.wait()[0].sum()) for one in all_of_them.wait())
    )
    assert total.wait() == 20 * 10 * SIZE
    dist.ProcessGroup.barrier(group).wait()


@pytest.mark.skipif(not hasattr(dist.Work, "get_future_result"), reason="older PyTorch")
def test_a_future_tells_how_an_operation_has_ended() -> None:
    assert dist.all_reduce(torch.ones(4), async_op=True).get_future_result().wait() == 0
    if SIZE > 1:
        work = dist.all_reduce(torch.ones(4 + (RANK == 0)), async_op=True)
        assert work.get_future_result().wait() == 2


def test_a_mismatch_comes_out_of_wait_and_futures_on_all_ranks() -> None:
    work = dist.all_reduce(torch.ones(3 + (RANK == 0)), async_op=True)
    future = work.get_future()
    with pytest.raises(ValueError, match="Mismatched allreduce tensor shapes"):
        work.wait()
    assert isinstance(work.exception(), ValueError)
    with pytest.raises(RuntimeError, match=r"UsageError: .*Mismatched"):
        future.wait()
    with pytest.raises(RuntimeError, match="Mismatched"):
        future.then(lambda one: one.value()).wait()
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == SIZE


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_calls_that_do_not_match_are_an_error_on_all_ranks() -> None:
    with pytest.raises(ValueError, match="Mismatched operations: rank"):
        dist.all_reduce(torch.ones(3)) if RANK == 0 else dist.broadcast(torch.ones(3), 0)
    dist.barrier()


def one_for_each_rank() -> list[torch.Tensor]:
    return [torch.ones(3) for _ in range(SIZE)]


def call_with(name: str, x: torch.Tensor) -> None:
    mine = one_for_each_rank() if RANK == 0 else None
    if name == "gather":
        dist.gather(x, mine)
    elif name == "scatter":
        dist.scatter(x, mine)
    else:
        getattr(dist, name)(x, 0)


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
@pytest.mark.parametrize("name", ["gather", "scatter", "reduce", "broadcast"])
def test_an_error_names_the_call_that_the_program_has_made(name: str) -> None:
    with pytest.raises(ValueError, match=rf"Mismatched {name} tensor shapes: rank") as raised:
        call_with(name, torch.ones(3 if RANK == 0 else 4))
    assert "all" not in str(raised.value).partition("All ranks")[0]


def exchange(x: torch.Tensor) -> None:
    dist.all_to_all_single(x.new_empty(3 * SIZE), x.repeat(SIZE))


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_a_reduction_to_one_rank_does_not_match_one_to_all() -> None:
    with pytest.raises(ValueError, match=r"reduce of float32 \[3\] with sum.*all"):
        dist.all_reduce(torch.ones(3)) if RANK == 1 else dist.reduce(torch.ones(3), 0)
    with pytest.raises(ValueError, match=r"rank \d has gather of .*all.*of"):
        exchange(torch.ones(3)) if RANK == 1 else call_with("gather", torch.ones(3))


@pytest.mark.skipif(SIZE == 1, reason="no rank is late")
def test_wait_has_a_time_limit_and_the_operation_goes_on() -> None:
    x = torch.ones(2)
    apart = dist.new_group()
    if RANK == 0:
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(
            TimeoutError, match=r" Timed out after 0.1 s, and the operation goes on"
        ):
            work.wait(datetime.timedelta(seconds=0.1))
    dist.barrier(group=apart)
    if RANK != 0:
        work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert (x == SIZE).all()


QUICK = {
    0: ("broadcast", lambda: ([torch.ones(2)],), dist.BroadcastOptions),
    1: ("allreduce", lambda: ([torch.ones(2)],), dist.AllreduceOptions),
    5: ("_allgather_base", lambda: (torch.ones(2 * SIZE), torch.ones(2)), AllgatherOptions),
    16: (
        *("_reduce_scatter_base", lambda: (torch.ones(2), torch.ones(2 * SIZE))),
        dist.ReduceScatterOptions,
    ),
}
"""By the number of torch's `OpType`: the calls that the core serves."""


@pytest.mark.skipif(SIZE == 1, reason="no rank is late")
@pytest.mark.skipif(not hasattr(dist.AllreduceOptions, "asyncOp"), reason="older PyTorch")
@pytest.mark.parametrize("number", QUICK)
def test_a_work_that_outlasts_its_call_knows_its_kind(number: int) -> None:
    name, tensors, options_type = QUICK[number]
    apart = dist.new_group()
    group = dist.group.WORLD
    options = options_type()
    options.asyncOp, options.timeout = False, datetime.timedelta(milliseconds=50)
    found = {}
    if RANK == 0:
        work = getattr(group, name)(*tensors(), options)
        found = {"ended": work.is_completed(), "type": work._get_op_type()}
    dist.barrier(group=apart)
    if RANK != 0:
        work = getattr(group, name)(*tensors(), options)
    work.wait(datetime.timedelta(seconds=30))
    assert found == ({"ended": False, "type": number} if RANK == 0 else {})


class EndsAtTheLimit:
    """A request whose wait is over just before its end."""

    waits = 0

    def wait(self, _timeout: float | None = None) -> None:
        """The first time it is over."""
        self.waits += 1
        if self.waits == 1:
            raise gradred.TimeoutError("wait", "it goes on", "Wait again")

    def done(self) -> bool:
        """It has ended meanwhile."""
        return True


@pytest.mark.skipif(SIZE == 1, reason="no rank is late")
def test_an_operation_that_ends_just_after_its_time_limit_has_ended_well() -> None:
    assert GradredWork([EndsAtTheLimit()], None, [], 1.0).wait()


def test_time_limits_name_the_rank_that_is_missing_and_reach_futures() -> None:
    apart = dist.new_group()
    hasty = dist.new_group(timeout=datetime.timedelta(seconds=0.3))
    if RANK == 0:
        works = [dist.all_reduce(torch.ones(n), group=hasty, async_op=True) for n in (2, 3)]
        begin = time.monotonic()
        for work in works:
            with pytest.raises(RuntimeError, match=r"TimeoutError: .*not been submitted by rank 1"):
                work.get_future().wait()
        assert 0.2 < time.monotonic() - begin < 2
        with pytest.raises(TimeoutError, match=r"not been submitted by rank 1"):
            works[0].wait()
    dist.barrier(group=apart)
    if RANK != 0:
        works = [dist.all_reduce(torch.ones(n), group=hasty, async_op=True) for n in (2, 3)]
    for work in works:
        work.wait(datetime.timedelta(seconds=30))
        assert (work.result()[0] == SIZE).all()


def test_an_operation_that_is_complete_has_its_result_in_place() -> None:
    whole = torch.zeros(SIZE, 3).t()  # the engine cannot write into this layout
    work = dist.all_gather_into_tensor(whole, torch.full((3,), RANK + 1.0), async_op=True)
    while not work.is_completed():
        time.sleep(0)
    assert whole.sum() == 3 * TOTAL


def test_a_result_that_has_no_room_is_an_error_again_and_again() -> None:
    work = dist.all_to_all_single(torch.empty(1), torch.ones(2 * SIZE), async_op=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="have come for a tensor of 1"):
            work.wait()
    assert work.is_completed()
    assert not work.is_success()


def test_many_operations_in_flight_that_torch_waits_for() -> None:
    from torch.distributed import _functional_collectives as functional

    begun = [functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD) for _ in range(40)]
    assert all((x + 0 == SIZE).all() for x in begun)


def test_groups_of_some_ranks() -> None:
    even = dist.new_group(list(range(0, SIZE, 2)))
    for _ in range(3):
        if RANK % 2 == 0:
            x = torch.ones(2)
            dist.all_reduce(x, group=even)
            assert (x == (SIZE + 1) // 2).all()
    dist.barrier()


def test_several_threads_with_groups_of_their_own() -> None:
    groups = [dist.new_group(list(range(SIZE))) for _ in range(3)]
    wrong: list[object] = []

    def work(group: Any) -> None:
        for turn in range(50):
            x = torch.full((10,), float(turn))
            dist.all_reduce(x, group=group)
            if not (x == SIZE * turn).all():
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong


def test_monitored_barrier_waits_for_all_ranks() -> None:
    began = time.monotonic()
    if RANK == SIZE - 1:
        time.sleep(0.3)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))
    assert time.monotonic() - began > 0.29
    dist.monitored_barrier()


@pytest.mark.skipif(SIZE == 1, reason="nobody is late")
@pytest.mark.parametrize("all_ranks", [False, True])
def test_monitored_barrier_names_who_did_not_come(all_ranks: bool) -> None:
    group = dist.new_group(timeout=datetime.timedelta(seconds=30))
    if RANK == 0:
        late = [str(rank) for rank in range(1, SIZE if all_ranks else 2)]
        whom = f"Rank{'s' * (len(late) > 1)} {', '.join(late)}"
        with pytest.raises(RuntimeError, match=f"{whom} failed to pass monitoredBarrier in 200 ms"):
            dist.monitored_barrier(group, datetime.timedelta(seconds=0.2), all_ranks)
    dist.barrier()
    x = torch.full((2,), RANK + 1.0)  # messages still work
    if RANK == 0:
        dist.send(x, 1, group)
    elif RANK == 1:
        dist.recv(x, 0, group)
        assert (x == 1).all()
    dist.destroy_process_group(group)


@pytest.mark.skipif(SIZE == 1, reason="nobody is late")
def test_monitored_barrier_works_after_one_to_which_ranks_came_late() -> None:
    group = dist.new_group(timeout=datetime.timedelta(seconds=30))
    if RANK != 0:
        time.sleep(0.5)
    with pytest.raises(RuntimeError, match="monitored_barrier"):
        dist.monitored_barrier(group, datetime.timedelta(seconds=0.1))
    dist.barrier()
    dist.monitored_barrier(group, datetime.timedelta(seconds=20))
    dist.destroy_process_group(group)


@pytest.mark.skipif(SIZE < 3, reason="takes one that leaves while another one is late")
def test_monitored_barrier_does_not_count_who_has_given_up() -> None:
    group = dist.new_group(timeout=datetime.timedelta(seconds=30))
    if RANK == 2:
        time.sleep(0.8)
    limit = datetime.timedelta(seconds=0.3 if RANK == 1 else 2)
    with pytest.raises(RuntimeError, match=r"Rank 1 failed to pass|Rank \d success"):
        dist.monitored_barrier(group, limit)
    dist.barrier()
    dist.monitored_barrier(group, datetime.timedelta(seconds=20))
    dist.destroy_process_group(group)


@pytest.mark.skipif(SIZE == 1, reason="nobody is late")
def test_monitored_barrier_without_time_is_over_on_rank_zero() -> None:
    group = dist.new_group()
    if RANK == 0:
        with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier after 0 ms"):
            group.monitored_barrier(datetime.timedelta(0))
    dist.barrier()
    dist.destroy_process_group(group)


@pytest.mark.skipif(SIZE == 1, reason="no rank is late")
def test_a_barrier_has_a_time_limit_of_its_own_in_torchs_words() -> None:
    apart, group = dist.new_group(), dist.new_group()
    options = dist.BarrierOptions()
    options.timeout = datetime.timedelta(seconds=0.2)
    if RANK == 0:
        works = [group.barrier(options), group.barrier(timeout=options.timeout)]
        for work in works:
            with pytest.raises(TimeoutError, match=r"rank 1.* Timed out after 0.2 s"):
                work.wait()
    dist.barrier(group=apart)
    if RANK != 0:
        works = [group.barrier(), group.barrier()]
    for work in works:
        work.wait(datetime.timedelta(seconds=30))


@pytest.mark.skipif(SIZE == 1, reason="rank 0 alone")
def test_monitored_barrier_that_rank_zero_does_not_reach() -> None:
    group = dist.new_group(timeout=datetime.timedelta(seconds=30))
    if RANK != 0:
        with pytest.raises(
            RuntimeError, match=f"Rank {RANK} successfully reached monitoredBarrier"
        ):
            dist.monitored_barrier(group, datetime.timedelta(seconds=0.2))
    dist.barrier()
    dist.destroy_process_group(group)


def test_refused_arguments_of_one_rank_are_an_error_on_all_and_the_group_goes_on() -> None:
    if SIZE == 1:
        pytest.skip("takes several ranks")
    x = torch.ones(8)[::2] if RANK == 1 else torch.ones(4)
    why = "all_reduce: the tensor is not dense"
    text = why if RANK == 1 else rf"rank 1 (\(.*\) )?has refused its arguments: {why}"
    with pytest.raises((ValueError, RuntimeError), match=text):
        dist.all_reduce(x)
    for value in (10.0, 100.0):
        x = torch.full((4,), value)
        dist.all_reduce(x)
        assert (x == SIZE * value).all()


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_memory_of_a_message_lives_until_it_is_read_though_its_group_is_destroyed() -> None:
    apart = dist.new_group()
    if type(apart._messages).__name__ == "OfMpi":
        pytest.skip("the MPI keeps no memory alive")
    if RANK == 0:
        x = torch.full((2_000_000,), 7.0)
        address = x.data_ptr()
        work = dist.isend(x, 1, group=apart)
        dist.destroy_process_group(apart)
        del x, work
        others = [torch.full((2_000_000,), 9.0) for _ in range(5)]
        assert address not in [one.data_ptr() for one in others]
        dist.barrier()
    elif RANK == 1:
        dist.barrier()
        got = torch.zeros(2_000_000)
        dist.recv(got, 0, group=apart)
        assert (got == 7).all()
    else:
        dist.barrier()
    dist.barrier()


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_memory_of_a_message_that_the_program_forgets_lives() -> None:
    if RANK == 0:
        dist.irecv(torch.zeros(300_000), 1)
        others = [torch.full((300_000,), 2.0) for _ in range(5)]
    dist.barrier()
    if RANK == 1:
        dist.send(torch.full((300_000,), 1.0), 0)
        dist.send(torch.full((3,), 5.0), 0)
    elif RANK == 0:
        x = torch.zeros(3)
        dist.recv(x, 1)
        assert (x == 5).all()
        assert all(bool((one == 2).all()) for one in others)
    dist.barrier()


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
@pytest.mark.parametrize("call", ["send", "recv"])
def test_a_forked_child_touches_no_messages(call: str) -> None:
    if type(dist.group.WORLD._messages).__name__ == "OfMpi":
        pytest.skip("no child may call the MPI")
    if RANK == 0:
        child = os.fork()
        if child == 0:
            try:
                start = dist.isend if call == "send" else dist.irecv
                start(torch.full((3,), 9.0), 1)
            except Exception as error:
                os._exit(0 if "fork" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        dist.send(torch.full((3,), 1.0), 1)
    elif RANK == 1:
        x = torch.zeros(3)
        dist.recv(x, 0)
        assert (x == 1).all()
    dist.barrier()
