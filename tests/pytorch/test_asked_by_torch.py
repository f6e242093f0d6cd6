"""What torch's C++ code asks of a group of gradred, from PyTorch 2.14 on."""

from __future__ import annotations

import datetime
import gc
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as in_flight
from pytorch.groups import RANK, SIZE, group_of_all, since  # noqa: F401 (a fixture)

from gradred.errors import UsageError
from gradred.torch_distributed.backend import CALLED_BY_TORCH

ANSWERS = dict.fromkeys(("splitting", "time_estimate"), False)
ANSWERS |= dict.fromkeys(("shrinking", "reconfigure"), CALLED_BY_TORCH)


def test_group_has_a_store() -> None:
    group = dist.group.WORLD
    assert group is not None
    store = group.get_group_store()
    store.set(f"from {RANK}", "here")
    store.wait([f"from {rank}" for rank in range(SIZE)])


def test_what_gradred_lacks_is_answered_or_refused() -> None:
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    for word, answer in ANSWERS.items():
        assert getattr(backend, f"supports_{word}") is answer
    assert group.supports_reconfigure is CALLED_BY_TORCH
    assert group.supports_window is backend.supports_window
    assert CALLED_BY_TORCH or not group.supports_window
    with pytest.raises(RuntimeError, match="gradred has no such hook"):
        group._register_on_completion_hook(print)
    group._set_sequence_number_for_group()
    limit = group._limit
    backend._set_default_timeout(datetime.timedelta(seconds=limit))
    assert group._limit == limit


@since(2, 14)
def test_group_has_a_backend() -> None:
    group = dist.group.WORLD
    backend = dist.get_backend_impl(group)
    assert isinstance(backend, torch._C._distributed_c10d.Backend)
    assert (backend.rank(), backend.size(), backend.name()) == (RANK, SIZE, "gradred")
    assert backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS


@since(2, 14)
def test_questions_are_answered() -> None:
    group = dist.group.WORLD
    backend = dist.get_backend_impl(group)
    assert not backend.supports_coalescing  # messages of a batch are faster alone
    assert dist._supports_reconfigure(group)
    assert dist._supports_window(group) is backend.supports_window


@since(2, 14)
def test_ranks_of_a_group_change_their_order() -> None:
    group = dist.new_group()
    for uuid in (1, 2):
        handles: list[Any] = [None] * SIZE
        dist.all_gather_object(handles, dist._get_reconfigure_handle(group), group=group)
        dist._reconfigure(uuid, handles[::-1], group).wait()
        own = RANK if uuid == 2 else SIZE - 1 - RANK
        assert (dist.get_rank(group), dist.get_world_size(group)) == (own, SIZE)
        ranks = dist.get_process_group_ranks(group)
        assert ranks == sorted(ranks, reverse=uuid == 1)
        x = torch.full((3,), RANK + 1.0)
        dist.broadcast(x, 0, group=group)
        assert (x == 1).all()
        dist.all_reduce(x, group=group)
        assert (x == SIZE).all()
        got = dist.irecv(torch.zeros(1), (RANK - 1) % SIZE, group=group)
        dist.send(torch.ones(1), (RANK + 1) % SIZE, group=group)
        got.wait()


@since(2, 14)
def test_a_group_of_several_backends_keeps_its_ranks() -> None:
    group = dist.new_group(backend="cpu:gradred,cuda:gloo")
    assert not dist._supports_reconfigure(group)
    with pytest.raises(UsageError, match="multiple backends"):
        dist._get_reconfigure_handle(group)


def test_numbers_and_kinds_of_operations() -> None:
    group = dist.new_group()
    for expected in (1, 2):
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        assert work._get_sequence_number() == expected
        assert work._get_op_type() == 1  # ALLREDUCE
        work.wait()
        assert group._get_sequence_number_for_group() == expected
    work = dist.barrier(group=group, async_op=True)
    assert (work._get_sequence_number(), work._get_op_type()) == (3, 15)
    work.wait()
    got = dist.irecv(torch.zeros(1), (RANK - 1) % SIZE, group=group)
    sent = dist.isend(torch.ones(1), (RANK + 1) % SIZE, group=group)
    assert (sent._get_op_type(), got._get_op_type()) == (12, 13)
    with pytest.raises(RuntimeError, match="a message has no number"):
        sent._get_sequence_number()
    got.wait()
    sent.wait()


@since(2, 14)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(SIZE, 3), (SIZE * 3,)])
def test_gather_single(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    root = SIZE - 1
    x = torch.full((3,), RANK % 2, dtype=dtype)
    out = torch.zeros(shape, dtype=dtype) if root == RANK else None
    for is_async in (False, True):
        work = dist.gather_single(x, out, dst=root, async_op=is_async)
        if work is not None:
            assert work._get_op_type() == 7
            work.wait()
    if out is not None:
        expected = torch.arange(SIZE).remainder(2).repeat_interleave(3).reshape(shape)
        assert torch.equal(out, expected.to(dtype))
        with pytest.raises(UsageError, match="not"):
            dist.gather_single(x, out[:1].clone(), dst=root)
    else:
        with pytest.raises(UsageError):
            dist.gather_single(x, out, dst=root)


class Seen:
    """Notes what torch's hooks get."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def before(self, found: Any) -> None:
        """A hook before an operation."""
        self.events.append(("before", found.name.name, len(found.input_tensors), found.root))

    def after(self, found: Any) -> None:
        """A hook after it has started."""
        self.events.append(("after", found.name.name))


def calls(group: Any) -> list[tuple[str, Callable[[], Any]]]:
    """Operations, by torch's name for hooks."""
    x, many = torch.ones(2), torch.ones(2 * SIZE)
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    each = [torch.ones(2) for _ in range(SIZE)]
    mine = each if RANK == 0 else None
    whole = many if RANK == 0 else None

    def messages() -> None:
        sent = dist.isend(x, right, group=group)
        dist.recv(torch.zeros(2), left, group=group)
        sent.wait()

    named: dict[str, Any] = {"group": group}
    return [
        ("ALLREDUCE", lambda: dist.all_reduce(x, **named)),
        ("ALLREDUCE", lambda: dist.all_reduce(x, async_op=True, **named).wait()),
        ("ALLREDUCE", lambda: dist.all_reduce_coalesced([x], **named)),
        ("BROADCAST", lambda: dist.broadcast(x, 0, **named)),
        ("REDUCE", lambda: dist.reduce(x, 0, **named)),
        ("ALLGATHER", lambda: dist.all_gather(each, x, **named)),
        ("ALLGATHER", lambda: dist.all_gather_into_tensor(many, x, **named)),
        ("REDUCE_SCATTER", lambda: dist.reduce_scatter(x, each, **named)),
        ("REDUCE_SCATTER", lambda: dist.reduce_scatter_tensor(x, many, **named)),
        ("ALLTOALL", lambda: dist.all_to_all_single(many, many.clone(), **named)),
        ("ALLTOALL", lambda: dist.all_to_all(each, [x] * SIZE, **named)),
        ("GATHER", lambda: dist.gather(x, mine, 0, **named)),
        ("GATHER", lambda: dist.gather_single(x, whole, 0, **named)),
        ("SCATTER", lambda: dist.scatter(x, mine, 0, **named)),
        ("BARRIER", lambda: dist.barrier(**named)),
        ("SEND", messages),
    ]


@since(2, 14)
def test_hooks_run_before_and_after_each_operation() -> None:
    group, seen = dist.new_group(), Seen()
    plain = type(group)
    group.register_pre_hook(1, seen.before)
    group.register_post_hook(1, seen.after)
    for name, call in calls(group):
        seen.events.clear()
        call()
        assert [one[:2] for one in seen.events[:2]] == [("before", name), ("after", name)], name
        assert len(seen.events) == (4 if name == "SEND" else 2)
    group.unregister_post_hook(1)
    assert type(group) is not plain
    group.unregister_pre_hook(1)
    assert type(group) is plain
    seen.events.clear()
    dist.all_reduce(torch.ones(2), group=group)
    assert not seen.events


@since(2, 14)
def test_results_are_the_same_under_hooks() -> None:
    group, seen = dist.new_group(), Seen()
    group.register_pre_hook(1, seen.before)
    x = torch.full((3,), RANK + 1.0)
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    assert (x == SIZE * (SIZE + 1) / 2).all()
    assert work._get_sequence_number() == 1
    sizes = [torch.zeros(rank + 1) for rank in range(SIZE)]
    dist.all_gather(sizes, torch.full((RANK + 1,), float(RANK)), group=group)
    assert all((one == rank).all() for rank, one in enumerate(sizes))
    with pytest.raises(UsageError):  # on every rank, as without hooks
        dist.all_to_all_single(torch.ones(3 * SIZE + 1), torch.ones(3 * SIZE + 1), group=group)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1), process_group=group)
    seen.events.clear()
    model(torch.full((2, 3), RANK + 1.0)).sum().backward()
    assert any(event[1] == "ALLREDUCE" for event in seen.events)
    weight = model.module.weight.grad
    assert weight is not None
    assert (weight == SIZE + 1).all()


@since(2, 14)
def test_an_error_of_a_hook_reaches_all_ranks() -> None:
    group = dist.new_group()

    def refuse(_: Any) -> None:
        raise RuntimeError("not now")

    if RANK == 0:
        group.register_pre_hook(7, refuse)
    with pytest.raises(RuntimeError, match="not now"):
        dist.all_reduce(torch.ones(2), group=group)
    if RANK == 0:
        group.unregister_pre_hook(7)
    x = torch.ones(2)
    dist.all_reduce(x, group=group)
    assert (x == SIZE).all()


@since(2, 14)
def test_a_hook_may_remove_itself_while_it_runs() -> None:
    group, calls = dist.new_group(), []
    plain = type(group)

    def once(_: Any) -> None:
        calls.append("called")
        group.unregister_pre_hook(1)
        group.unregister_post_hook(1)

    for turn in (1, 2):
        group.register_pre_hook(1, once)
        group.register_post_hook(1, calls.append)
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        dist.all_reduce(x, group=group)
        assert (x == SIZE * SIZE).all()
        assert calls == ["called"] * turn
        assert type(group) is plain
    with pytest.raises(TypeError, match="function"):
        group.register_pre_hook(1, 7)


@since(2, 14)
def test_threads_may_change_hooks_while_operations_run() -> None:
    group, ends = dist.new_group(), threading.Event()
    group.register_pre_hook(1, lambda _: None)

    def change() -> None:
        while not ends.is_set():
            group.register_post_hook(2, lambda _: None)
            group.unregister_post_hook(2)

    changer = threading.Thread(target=change)
    changer.start()
    x = torch.ones(2)
    for _ in range(200):
        dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
    ends.set()
    changer.join()
    assert (x == 1).all()
    group.unregister_pre_hook(1)


@since(2, 14)
def test_a_backend_that_outlives_its_group_has_an_error_and_can_end() -> None:
    backend = dist.get_backend_impl(dist.new_group())
    dist.destroy_process_group(backend._of())
    gc.collect()
    assert backend._of() is None
    assert backend.get_error() == torch._C._distributed_c10d.ErrorType.COMM_ERROR
    backend.abort()
    backend.shutdown()
    with pytest.raises(UsageError, match="its group is gone"):
        backend.rank()


@since(2, 14)
def test_nan_check() -> None:
    hook_of_torch = torch._C._distributed_c10d.NanCheckHook
    group = dist.new_group()
    plain, hook = type(group), hook_of_torch.attach(group)
    x = torch.tensor([1.0, math.nan])
    with pytest.raises(RuntimeError, match="NaN"):
        dist.all_reduce(x, group=group)
    whole = torch.ones(2)
    dist.broadcast(whole if RANK == 0 else x, 0, group=group)  # received, not sent
    hook.remove()
    assert type(group) is plain
    dist.all_reduce(torch.tensor([math.nan]), group=group)
    hook_of_torch.attach(group)  # the group keeps the hook
    gc.collect()
    with pytest.raises(RuntimeError, match="NaN"):
        dist.all_reduce(torch.tensor([math.nan]), group=group)


@since(2, 14)
def test_nan_check_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DIST_NAN_CHECK", "1")
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    with pytest.raises(RuntimeError, match="NaN"):
        dist.all_reduce(torch.tensor([math.nan]), group=group)


@since(2, 14)
def test_flight_recorder() -> None:
    group = dist.new_group()
    plain, hook = type(group), torch._C._distributed_c10d.FlightRecorderHook.attach(group)
    assert type(group) is not plain
    dist.all_reduce(torch.ones(1), group=group)
    hook.remove()
    assert type(group) is plain


def test_durations() -> None:
    group = dist.new_group()
    before = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    before.wait()
    group._enable_collectives_timing()
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    work.wait()
    assert 0 < work._get_duration() < 60_000
    with pytest.raises(RuntimeError):
        before._get_duration()


@pytest.mark.parametrize("with_hooks", [False, True])
def test_works_in_flight_are_in_torchs_record_until_a_wait(with_hooks: bool) -> None:
    if not hasattr(in_flight, "allow_inflight_collective_as_graph_input_ctx"):
        pytest.skip("a newer PyTorch has it")
    group, size = dist.new_group(), torch._C._distributed_c10d._get_work_registry_size
    if with_hooks:
        if not hasattr(group, "register_pre_hook"):
            pytest.skip("a newer PyTorch has hooks")
        group.register_pre_hook(1, lambda _: None)
    plain = type(group)
    with in_flight.allow_inflight_collective_as_graph_input_ctx():
        x, y = torch.ones(4), torch.ones(2)
        first = dist.all_reduce(x[:2], group=group, async_op=True)
        second = dist.all_reduce(x[2:], group=group, async_op=True)  # the same storage
        third = dist.all_reduce(y, group=group, async_op=True)
        assert size() == 3
        second.wait()
        assert size() == 2
        torch.ops._c10d_functional.wait_tensor(y)
        assert size() == 1
        assert third.is_completed()
        first.wait()
        third.wait()
        assert size() == 0
        later = dist.new_group()
        dist.all_reduce(x, group=later)
        assert size() == 0
    assert type(group) is plain
    assert (x[:2] == SIZE * SIZE).all()


def test_more_time_for_the_next_operation() -> None:
    group = dist.new_group(timeout=datetime.timedelta(seconds=20))
    plain = type(group)
    group._add_ephemeral_timeout(datetime.timedelta(seconds=10))
    assert group._limit == 30
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    assert work._limit == 30
    work.wait()
    dist.all_reduce(torch.ones(2), group=group)
    _await_limit(group, 20)
    assert type(group) is plain
    group._add_ephemeral_timeout(datetime.timedelta(seconds=10))
    group.set_timeout(datetime.timedelta(seconds=5))
    dist.all_reduce(torch.ones(2), group=group)
    _await_limit(group, 5)


def _await_limit(group: Any, seconds: float) -> None:
    """Wait until another thread has taken the time back, which may be after the operation's end."""
    end = time.monotonic() + 10
    while group._limit != seconds:
        assert time.monotonic() < end, group._limit
        time.sleep(0.001)


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
@pytest.mark.parametrize("is_async", [False, True])
def test_coalescing(device: Any, is_async: bool) -> None:
    tensors = [torch.full((size + 1,), RANK + 1.0) for size in range(3)]
    with dist._coalescing_manager(device=device, async_ops=is_async) as manager:
        for x in tensors:
            dist.all_reduce(x)
    assert len(manager.works) == int(is_async)
    manager.wait()
    assert all((x == SIZE * (SIZE + 1) / 2).all() for x in tensors)
