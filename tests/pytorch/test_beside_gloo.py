"""What every backend of torch.distributed has to do, for gradred and gloo with the same tests.

The tests ask what PyTorch's suites for any backend ask (test_c10d_collectives, _p2p,
_process_group, _backend_collectives, _nan_check), in our own words: those files are in no wheel.
Whatever gloo does, gradred does, but for `DIFFERENT`. `BEYOND_GLOO` is what gradred does and gloo
does not; PyTorch's suites ask it of NCCL.
"""

from __future__ import annotations

import datetime
import functools
import gc
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, since, torch

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = since(2, 14)

RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
ALL = list(range(SIZE))

DIFFERENT = {
    "all_to_all_single of a tensor with gaps": "gradred sends the numbers that the tensor shows, as"
    " in its other collectives, where gloo raises an error"
}
BEYOND_GLOO = (
    *("float8", "dropped messages", "result of a work", "gather_single", "gather_into_tensor"),
    *("coalescing with a device", "durations", "numbers of works"),
)

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
COMPLEX = (torch.complex64, torch.complex128)


@pytest.fixture(scope="module", params=["gradred", "gloo"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each test runs with both."""
    return str(request.param)


@pytest.fixture(scope="module")
def group(backend: str) -> Iterator[Any]:
    """All ranks, with the backend."""
    made = dist.new_group(backend=backend, timeout=datetime.timedelta(seconds=30))
    yield made
    dist.destroy_process_group(made)


@dataclass(frozen=True)
class Case:
    """One call of a collective."""

    group: Any
    dtype: Any
    count: int
    is_async: bool

    def of(self, rank: int, count: int | None = None) -> Any:
        """A tensor that this rank has."""
        value = rank % 2 if self.dtype is torch.bool else rank + 1
        return torch.full((self.count if count is None else count,), float(value)).to(self.dtype)

    def empty(self, count: int) -> Any:
        """A tensor for a result."""
        return torch.zeros(count).to(self.dtype)

    def named(self, **more: Any) -> dict[str, Any]:
        """The arguments that all collectives take."""
        return {"group": self.group, "async_op": self.is_async, **more}

    def run(self, call: Callable[[Case], Any]) -> None:
        """Run a collective, and compare its results."""
        work, found, expected = call(self)
        assert (work is not None) == self.is_async
        if work is not None:
            work.wait()
        for one, right in zip(found, expected, strict=True):
            assert one.dtype is right.dtype
            same = one.view(torch.uint8), right.view(torch.uint8)
            assert torch.equal(*same), (self, one, right)


def cases(group: Any, dtype: Any) -> Iterator[Case]:
    """All cases of a type."""
    for count in (0, 4):
        for is_async in (False, True):
            yield Case(group, dtype, count, is_async)


def broadcast(case: Case) -> Any:
    x = case.of(RANK)
    return dist.broadcast(x, 0, **case.named()), [x], [case.of(0)]


def all_gather(case: Case) -> Any:
    out = [case.empty(case.count) for _ in ALL]
    return dist.all_gather(out, case.of(RANK), **case.named()), out, [case.of(one) for one in ALL]


def all_gather_single(case: Case) -> Any:
    out = case.empty(SIZE * case.count)
    work = dist.all_gather_single(out, case.of(RANK), **case.named())
    return work, [out], [torch.cat([case.of(one) for one in ALL])]


def gather(case: Case) -> Any:
    out = [case.empty(case.count) for _ in ALL] if RANK == 0 else None
    work = dist.gather(case.of(RANK), out, 0, **case.named())
    return work, out or [], [case.of(one) for one in ALL] if out else []


def gather_single(case: Case, stacked: bool = False) -> Any:
    shape = (SIZE, case.count) if stacked else (SIZE * case.count,)
    out = case.empty(SIZE * case.count).view(shape) if RANK == 0 else None
    work = dist.gather_single(case.of(RANK), out, 0, **case.named())
    if out is None:
        return work, [], []
    return work, [out], [torch.cat([case.of(one) for one in ALL]).view(shape)]


def scatter(case: Case) -> Any:
    out, parts = case.empty(case.count), [case.of(one) for one in ALL]
    work = dist.scatter(out, parts if RANK == 0 else None, 0, **case.named())
    return work, [out], [case.of(RANK)]


def all_to_all(case: Case) -> Any:
    out = [case.empty(case.count) for _ in ALL]
    work = dist.all_to_all(out, [case.of(RANK)] * SIZE, **case.named())
    return work, out, [case.of(one) for one in ALL]


def all_to_all_single(case: Case) -> Any:
    out = case.empty(SIZE * case.count)
    work = dist.all_to_all_single(out, case.of(RANK, SIZE * case.count), **case.named())
    return work, [out], [torch.cat([case.of(one) for one in ALL])]


def uneven_all_to_all(case: Case) -> Any:
    sent, got = [RANK + one + 1 for one in ALL], [one + RANK + 1 for one in ALL]
    out, x = case.empty(sum(got)), case.of(RANK, sum(sent))
    work = dist.all_to_all_single(out, x, got, sent, **case.named())
    return (
        work,
        [out],
        [torch.cat([case.of(one, rows) for one, rows in zip(ALL, got, strict=True)])],
    )


MOVES = (broadcast, all_gather, all_gather_single, gather, scatter)
MOVES += (all_to_all, all_to_all_single, uneven_all_to_all)


@pytest.mark.parametrize("call", MOVES)
@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_moves(call: Callable[[Case], Any], dtype: Any, group: Any) -> None:
    for case in cases(group, dtype):
        case.run(call)


OPS: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": operator.add,
    "AVG": operator.add,
    "PRODUCT": operator.mul,
    "MIN": min,
    "MAX": max,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}


def reduced(case: Case, op: str, count: int | None = None) -> Any:
    """The reduction over all ranks, computed by Python."""
    values = [one % 2 == 1 if case.dtype is torch.bool else one + 1 for one in ALL]
    total = functools.reduce(OPS[op], values)
    total = total / SIZE if op == "AVG" else total
    return torch.full((case.count if count is None else count,), total, dtype=case.dtype)


def all_reduce(case: Case, op: str) -> Any:
    x = case.of(RANK)
    return dist.all_reduce(x, getattr(dist.ReduceOp, op), **case.named()), [x], [reduced(case, op)]


def reduce(case: Case, op: str) -> Any:
    x = case.of(RANK)
    work = dist.reduce(x, 0, getattr(dist.ReduceOp, op), **case.named())
    return (work, [x], [reduced(case, op)]) if RANK == 0 else (work, [], [])


def reduce_scatter(case: Case, op: str) -> Any:
    out, parts = case.empty(case.count), [case.of(RANK) for _ in ALL]
    work = dist.reduce_scatter(out, parts, getattr(dist.ReduceOp, op), **case.named())
    return work, [out], [reduced(case, op)]


def reduce_scatter_single(case: Case, op: str) -> Any:
    out, x = case.empty(case.count), case.of(RANK, SIZE * case.count)
    work = dist.reduce_scatter_single(out, x, getattr(dist.ReduceOp, op), **case.named())
    return work, [out], [reduced(case, op)]


REDUCTIONS = (all_reduce, reduce, reduce_scatter, reduce_scatter_single)


@pytest.mark.parametrize("call", REDUCTIONS)
@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_reductions(call: Callable[[Case, str], Any], dtype: Any, group: Any) -> None:
    without = ("BAND", "BOR", "BXOR") if dtype.is_floating_point else ("AVG",)
    for op in (one for one in OPS if one not in without):  # in one order on all ranks
        for case in cases(group, dtype):
            case.run(functools.partial(call, op=op))


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_numbers(dtype: Any, group: Any) -> None:
    for case in cases(group, dtype):
        case.run(broadcast)
        for op in ("SUM", "AVG"):
            case.run(functools.partial(all_reduce, op=op))
            case.run(functools.partial(reduce, op=op))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_coalesced(dtype: Any, group: Any) -> None:
    for is_async in (False, True):
        case = Case(group, dtype, 0, is_async)
        tensors = [case.of(RANK, count) for count in (1, 2, 3)]
        work = dist.all_reduce_coalesced(tensors, **case.named())
        assert (work is not None) == is_async
        if work is not None:
            work.wait()
        for x in tensors:
            assert torch.equal(x, reduced(case, "SUM", x.numel()))
    inputs = [case.of(RANK, count) for count in (2, 4)]
    outputs = [[torch.zeros_like(x) for x in inputs] for _ in ALL]
    dist.all_gather_coalesced(outputs, inputs, group=group)
    for rank, row in enumerate(outputs):
        assert all(torch.equal(x, case.of(rank, x.numel())) for x in row)


def test_barrier(group: Any) -> None:
    assert dist.barrier(group=group) is None
    assert dist.barrier(group=group, async_op=True).wait()


def test_types_that_differ_are_an_error(group: Any) -> None:
    x, whole = torch.ones(4), torch.empty(4 * SIZE, dtype=torch.float64)
    for call in (dist.all_gather_single, dist.all_to_all_single):
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            call(whole, x, group=group)
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        dist.reduce_scatter_single(x, whole, group=group)


def test_all_to_all_of_tensors_with_gaps(group: Any, backend: str) -> None:
    assert "all_to_all_single of a tensor with gaps" in DIFFERENT
    x = torch.arange(float(SIZE * SIZE)).view(SIZE, SIZE).t()
    out = torch.zeros(SIZE, SIZE)
    if backend == "gloo":
        with pytest.raises(ValueError, match="Tensors must be contiguous"):
            dist.all_to_all_single(out, x, group=group)
    else:
        dist.all_to_all_single(out, x, group=group)
        assert torch.equal(out, x[RANK].repeat(SIZE, 1))


# ---- messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_messages(dtype: Any, group: Any) -> None:
    for count in (0, 4):
        case = Case(group, dtype, count, False)
        got = case.empty(count)
        if RANK == 0:
            dist.send(case.of(RANK), RIGHT, group=group)
        dist.recv(got, LEFT, group=group)
        if RANK != 0:
            dist.send(case.of(RANK), RIGHT, group=group)
        assert torch.equal(got, case.of(LEFT))
        got = case.empty(count)
        calls = [functools.partial(dist.isend, case.of(RANK), RIGHT, group=group)]
        calls.insert(RANK % 2, functools.partial(dist.irecv, got, LEFT, group=group))
        for work in [call() for call in calls]:
            work.wait()
        assert torch.equal(got, case.of(LEFT))


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
@pytest.mark.parametrize("receives_first", [False, True])
def test_batches_of_messages(dtype: Any, receives_first: bool, group: Any) -> None:
    case = Case(group, dtype, 1, False)
    for pairs in (1, 2):
        got, batch = [case.empty(1) for _ in range(pairs)], []
        for index, x in enumerate(got):
            pair = [
                dist.P2POp(dist.isend, case.of(RANK + index), RIGHT, group),
                dist.P2POp(dist.irecv, x, LEFT, group),
            ]
            batch += pair[::-1] if receives_first else pair
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        for index, x in enumerate(got):
            assert torch.equal(x, case.of(LEFT + index))


# ---- groups and works --------------------------------------------------------------------------


def test_ranks_of_a_new_group_may_be_a_tensor(backend: str) -> None:
    group = dist.new_group(ranks=torch.arange(SIZE), backend=backend)
    assert dist.get_process_group_ranks(group) == ALL
    x = torch.tensor([RANK])
    dist.broadcast(x, 0, group=group)
    assert not x.any()
    with pytest.raises(TypeError, match="integers"):
        dist.new_group(ranks=torch.arange(float(SIZE)), backend=backend)
    with pytest.raises(ValueError, match="duplicate"):
        dist.new_group(ranks=[0, torch.tensor(0)], backend=backend)


def test_groups_number_their_operations(backend: str) -> None:
    first, second = dist.new_group(backend=backend), dist.new_group(backend=backend)
    for number in range(1, 4):
        dist.all_reduce(torch.ones(1), group=first)
        assert first._get_sequence_number_for_group() == number
    assert second._get_sequence_number_for_group() == 0
    work = dist.all_reduce(torch.ones(1), group=second, async_op=True)
    assert (work._get_sequence_number(), work._get_op_type()) == (1, 1)
    work.wait()
    assert first._get_sequence_number_for_group() == 3


def test_a_group_of_one_rank_beside_one_of_all(group: Any, backend: str) -> None:
    alone = dist.new_group([0], backend=backend)
    if RANK == 0:
        x = torch.ones(1)
        dist.all_reduce(x, group=alone)
        assert x.item() == 1
    dist.barrier(group=group)


def test_a_work_may_be_dropped(group: Any) -> None:
    x = torch.full((4,), RANK + 1.0)
    dist.all_reduce(x, group=group, async_op=True)
    dist.barrier(group=group)
    assert (x == SIZE * (SIZE + 1) / 2).all()
    dist.all_reduce(torch.ones(4), group=group, async_op=True)
    gc.collect()
    dist.barrier(group=group)


def test_a_future(group: Any) -> None:
    x = torch.full((4,), RANK + 1.0)
    dist.all_reduce(x, group=group, async_op=True).get_future().wait()
    assert (x == SIZE * (SIZE + 1) / 2).all()


def test_a_wait_ends_a_works_record() -> None:
    from torch.distributed import _functional_collectives as functional

    size = torch._C._distributed_c10d._get_work_registry_size
    with functional.allow_inflight_collective_as_graph_input_ctx():
        x = torch.ones(1)
        before = size()
        work = dist.all_reduce(x, async_op=True)
        assert size() == before + 1
        work.wait()
        assert size() == before


def test_nan_check_looks_at_what_is_sent(group: Any) -> None:
    hook = torch._C._distributed_c10d.NanCheckHook.attach(group)
    bad = torch.ones(1024)
    bad[42] = math.nan
    with pytest.raises(RuntimeError, match="NaN"):
        dist.all_reduce(bad, group=group)
    x, got = torch.ones(4), torch.full((4,), math.nan)
    whole = torch.ones(3) if RANK == 0 else torch.full((3,), math.nan)
    dist.broadcast(whole, 0, group=group)
    sent = dist.isend(x, RIGHT, group=group)
    dist.recv(got, LEFT, group=group)
    sent.wait()
    out = [torch.full((4,), math.nan) for _ in ALL]
    dist.all_gather(out, x, group=group)
    assert all((one == 1).all() for one in (whole, got, *out))
    whole_numbers = torch.ones(4, dtype=torch.int64)
    dist.all_reduce(whole_numbers, group=group)
    assert (whole_numbers == SIZE).all()
    hook.remove()
    dist.all_reduce(bad, group=group)


# ---- beyond gloo -------------------------------------------------------------------------------


@pytest.fixture
def ours() -> Any:
    """A group of gradred."""
    return dist.new_group(backend="gradred")


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8(dtype: Any, ours: Any) -> None:
    for case in cases(ours, dtype):
        for call in (*MOVES, gather_single):
            case.run(call)


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_gather_single(dtype: Any, ours: Any) -> None:
    for case in cases(ours, dtype):
        case.run(gather_single)
        case.run(functools.partial(gather_single, stacked=True))


def test_gather_into_tensor(ours: Any) -> None:
    out = torch.zeros(4 * SIZE) if RANK == 0 else None
    with pytest.warns(FutureWarning, match="gather_into_tensor"):
        dist.gather_into_tensor(torch.full((4,), float(RANK)), out, 0, group=ours)
    if out is not None:
        assert torch.equal(out, torch.arange(float(SIZE)).repeat_interleave(4))


def test_a_work_of_a_message_may_be_dropped(ours: Any) -> None:
    x, got = torch.full((4,), float(RANK)), torch.zeros(4)
    dist.isend(x, RIGHT, group=ours)
    gc.collect()
    dist.irecv(got, LEFT, group=ours).wait()
    assert (got == LEFT).all()


def test_the_result_of_a_work(ours: Any) -> None:
    work = dist.all_reduce(torch.ones(4), group=ours, async_op=True)
    result = torch._C._distributed_c10d.WorkResult(work.get_future_result().wait())
    assert result.name == "SUCCESS"
    assert work.is_completed()


@pytest.mark.parametrize("is_async", [False, True])
def test_coalescing_with_a_device(is_async: bool, ours: Any) -> None:
    sizes, total = (1, 2, 3), SIZE * (SIZE + 1) / 2

    def coalesced(call: Callable[..., Any], out: list[Any], given: list[Any]) -> None:
        device = torch.device("cpu")
        with dist._coalescing_manager(ours, device, async_ops=is_async) as manager:
            for index, x in enumerate(out):
                call(x, *given[index : index + 1], group=ours)
        assert len(manager.works) == int(is_async)
        manager.wait()

    x = [torch.full((size,), RANK + 1.0) for size in sizes]
    wide = [torch.full((size * SIZE,), RANK + 1.0) for size in sizes]
    gathered = [torch.zeros(size * SIZE) for size in sizes]
    coalesced(dist.all_gather_single, gathered, x)
    for out, size in zip(gathered, sizes, strict=True):
        assert torch.equal(out, torch.arange(1.0, SIZE + 1).repeat_interleave(size))
    scattered = [torch.zeros(size) for size in sizes]
    coalesced(dist.reduce_scatter_single, scattered, wide)
    coalesced(dist.all_reduce, x, [])
    assert all((one == total).all() for one in (*x, *scattered))


def test_durations(ours: Any) -> None:
    before = dist.all_reduce(torch.ones(4), group=ours, async_op=True)
    before.wait()
    ours._enable_collectives_timing()
    work = dist.all_reduce(torch.ones(4), group=ours, async_op=True)
    work.wait()
    assert math.isfinite(work._get_duration())
    assert work._get_duration() > 0
    with pytest.raises(RuntimeError):
        before._get_duration()
