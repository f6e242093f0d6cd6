"""torch.distributed with the backend "gradred": each collective, errors, DDP and FSDP2."""

from __future__ import annotations

import datetime
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, since, torch

from gradred import _core
from gradred.torch import other_devices, process_group
from gradred.torch.work import GradredWork

__all__ = ["group_of_all"]  # a fixture of this module
TOTAL = SIZE * (SIZE + 1) // 2
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # names that torch 2.13 renamed


DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (7, 3000)])
def test_all_reduce_sums(dtype: Any, shape: tuple[int, ...]) -> None:
    x = torch.full(shape, RANK + 1).to(dtype)
    dist.all_reduce(x)
    assert x.dtype is dtype
    # PyTorch before 2.6 does not compare floats of 8 bits.
    assert torch.equal(x.to(torch.complex128), torch.full(shape, TOTAL).to(torch.complex128))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("AVG", TOTAL / SIZE),
        ("MIN", 1),
        ("MAX", SIZE),
        ("PRODUCT", int(torch.arange(1, SIZE + 1).prod())),
    ],
)
def test_other_reductions(op: str, expected: float) -> None:
    x = torch.full((4, 5), float(RANK + 1)).t()  # dense in another order
    dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
    assert torch.allclose(x, torch.full((5, 4), float(expected)))


def test_a_tensor_may_be_given_other_memory_while_it_is_reduced() -> None:
    x = torch.ones(2_000_000)
    work = None
    if RANK == 0:
        work = dist.all_reduce(x, async_op=True)
        x.data = torch.zeros(1)
    time.sleep(0.05)
    work = dist.all_reduce(x, async_op=True) if work is None else work
    assert work.wait()
    assert RANK == 0 or (x == SIZE).all()


@pytest.mark.skipif(SIZE == 1, reason="takes ranks that take different ways")
def test_a_refused_operation_counts_whatever_way_it_takes() -> None:
    class Special(torch.Tensor):
        """One that takes a closer look."""

    x = torch.ones(5)
    mine = x if RANK == 0 else x.as_subclass(Special)
    with pytest.raises(ValueError, match="band is not defined for float32"):
        dist.all_reduce(mine, op=dist.ReduceOp.BAND)
    dist.all_reduce(mine)
    assert (x == SIZE).all()


def test_bits_and_truth() -> None:
    x = torch.tensor([1 << RANK, 3])
    dist.all_reduce(x, op=dist.ReduceOp.BOR)
    assert x.tolist() == [2**SIZE - 1, 3]
    y = torch.tensor([RANK == 0, True, False])
    dist.all_reduce(y)
    assert y.tolist() == [True, True, False]


def test_all_gather_of_lists_tensors_and_other_shapes() -> None:
    x = torch.full((2, 3), RANK)
    parts = [torch.empty(2, 3, dtype=torch.int64) for _ in range(SIZE)]
    dist.all_gather(parts, x)
    assert [int(part[0, 0]) for part in parts] == list(range(SIZE))
    whole = torch.empty(2 * SIZE, 3, dtype=torch.int64)
    dist.all_gather_into_tensor(whole, x)
    assert torch.equal(whole, torch.cat(parts))
    uneven = [torch.empty(rank + 1) for rank in range(SIZE)]
    dist.all_gather(uneven, torch.full((RANK + 1,), float(RANK)))
    assert all((part == rank).all() for rank, part in enumerate(uneven))


def test_reduce_scatter() -> None:
    out = torch.empty(3)
    dist.reduce_scatter_tensor(out, torch.arange(3.0 * SIZE))
    assert torch.equal(out, torch.arange(3.0 * RANK, 3 * RANK + 3) * SIZE)
    dist.reduce_scatter(out, [torch.full((3,), float(rank)) for rank in range(SIZE)])
    assert (out == RANK * SIZE).all()


def test_broadcast_reduce_gather_scatter() -> None:
    root = SIZE - 1
    x = torch.full((4, 3), RANK).t()
    dist.broadcast(x, root)
    assert (x == root).all()
    y = torch.ones(3)
    dist.reduce(y, root)
    assert (y == (SIZE if root == RANK else 1)).all()
    parts = [torch.empty(2) for _ in range(SIZE)] if root == RANK else None
    dist.gather(torch.full((2,), float(RANK)), parts, root)
    assert parts is None or [part[0].item() for part in parts] == list(range(SIZE))
    mine = torch.empty(2)
    dist.scatter(
        mine, [torch.full((2,), float(r)) for r in range(SIZE)] if root == RANK else None, root
    )
    assert (mine == RANK).all()


def test_all_to_all() -> None:
    out = torch.empty(SIZE)
    dist.all_to_all_single(out, torch.arange(float(SIZE)) + 10 * RANK)
    assert out.tolist() == [10 * rank + RANK for rank in range(SIZE)]
    gives = [(RANK + rank) % 2 + 1 for rank in range(SIZE)]
    uneven = torch.empty(sum(gives), 2)
    dist.all_to_all_single(uneven, torch.full((sum(gives), 2), float(RANK)), gives, gives)
    expected = torch.repeat_interleave(torch.arange(float(SIZE)), torch.tensor(gives))
    assert torch.equal(uneven[:, 0], expected)
    parts = [torch.empty(rank + 1) for rank in range(SIZE)]
    dist.all_to_all(parts, [torch.full((RANK + 1,), float(RANK)) for _ in range(SIZE)])
    assert all((part == rank).all() for rank, part in enumerate(parts))


def test_all_to_all_where_ranks_have_no_rows() -> None:
    gives = [3 * (RANK == 0)] * SIZE  # rank 0 alone has any
    gets = [3] + [0] * (SIZE - 1)
    out = torch.empty(3, 2)
    dist.all_to_all_single(out, torch.full((sum(gives), 2), RANK + 5.0), gets, gives)
    assert (out == 5).all()
    dist.all_to_all_single(torch.empty(0, 2), torch.empty(0, 2), [0] * SIZE, [0] * SIZE)
    parts = [torch.empty(size) for size in gets]
    dist.all_to_all(parts, [torch.full((size,), RANK + 5.0) for size in gives])
    assert (parts[0] == 5).all()


def test_empty_tensors() -> None:
    dist.reduce_scatter_tensor(torch.empty(0, 2), torch.empty(0, 2))
    dist.reduce_scatter(torch.empty(0), [torch.empty(0)] * SIZE)
    dist.gather(torch.empty(0), [torch.empty(0)] * SIZE if RANK == 0 else None)
    dist.scatter(torch.empty(0), [torch.empty(0)] * SIZE if RANK == 0 else None)
    dist.all_gather([torch.empty(0)] * SIZE, torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0))
    dist.broadcast(torch.empty(0), 0)
    dist.reduce(torch.empty(0), 0)


def learned(*shape: int) -> Any:
    """Where results go in pipelines: a leaf of the graph."""
    return torch.zeros(shape, requires_grad=True)


@pytest.mark.parametrize("dense", [True, False])
def test_results_may_go_to_leaves_that_require_a_gradient(dense: bool) -> None:
    def leaf(*shape: int) -> Any:
        return learned(*shape) if dense else torch.zeros(shape[::-1]).t().requires_grad_()

    def roots(given: Any) -> Any:
        return given if RANK == 0 else None

    mine = torch.full((2, 3), RANK + 1.0, requires_grad=True)
    x = leaf(2, 3)
    dist.broadcast(x, 0)
    dist.all_reduce(x)
    dist.reduce(x, 0)
    wholes = [leaf(2 * SIZE, 3), leaf(2 * SIZE, 3)]
    dist.all_gather_into_tensor(wholes[0], mine)
    dist.all_to_all_single(wholes[1], wholes[0])
    lists = [[leaf(2, 3) for _ in range(SIZE)] for _ in range(3)]
    dist.all_gather(lists[0], mine)
    dist.all_to_all(lists[1], [mine] * SIZE)
    dist.gather(mine, roots(lists[2]))
    assert all((part == rank + 1).all() for part, rank in zip(lists[0], range(SIZE), strict=True))
    assert torch.equal(torch.cat(lists[0]), wholes[0])
    assert torch.equal(torch.cat(lists[1]), wholes[0])
    assert RANK != 0 or torch.equal(torch.cat(lists[2]), wholes[0])
    parts = [leaf(2, 3), leaf(2, 3), leaf(2, 3)]
    dist.reduce_scatter_tensor(parts[0], wholes[0])
    dist.reduce_scatter(parts[1], lists[0])
    dist.scatter(parts[2], roots(lists[0]))
    assert (parts[0] == SIZE * (RANK + 1)).all()
    assert (parts[1] == SIZE * (RANK + 1)).all()
    assert (parts[2] == RANK + 1).all()


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


def test_objects() -> None:
    found: list[Any] = [None] * SIZE
    dist.all_gather_object(found, {"rank": RANK, "data": [0] * RANK})
    assert [one["rank"] for one in found] == list(range(SIZE))
    given = [RANK, "x" * RANK]
    dist.broadcast_object_list(given, SIZE - 1)
    assert given == [SIZE - 1, "x" * (SIZE - 1)]


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_messages() -> None:
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = torch.empty(3)
    ops = [
        dist.P2POp(dist.isend, torch.full((3,), float(RANK)), right),
        dist.P2POp(dist.irecv, got, left),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert (got == left).all()
    if RANK == 0:
        dist.send(torch.tensor([42], dtype=torch.bfloat16), 1, tag=5)
    if RANK == 1:
        x = torch.empty(1, dtype=torch.bfloat16)
        assert dist.recv(x, tag=5) == 0
        assert x.item() == 42


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


@pytest.mark.skipif(SIZE == 1, reason="no rank is late")
def test_wait_has_a_time_limit_and_the_operation_goes_on() -> None:
    x = torch.ones(2)
    apart = dist.new_group()
    if RANK == 0:
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(TimeoutError, match="goes on"):
            work.wait(datetime.timedelta(seconds=0.1))
    dist.barrier(group=apart)
    if RANK != 0:
        work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert (x == SIZE).all()


@pytest.mark.skipif(SIZE == 1, reason="no rank is late")
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
    whole = torch.zeros(SIZE, 3).t()  # where the engine cannot put it
    work = dist.all_gather_into_tensor(whole, torch.full((3,), RANK + 1.0), async_op=True)
    while not work.is_completed():
        time.sleep(0)
    assert whole.sum() == 3 * TOTAL


def test_a_result_that_has_no_room_is_an_error_again_and_again() -> None:
    work = dist.all_gather_into_tensor(torch.empty(1), torch.ones(3), async_op=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="invalid"):
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


# ---- what is built on it ------------------------------------------------------------------------


def model_of() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    ).double()


def data_of(steps: int) -> Any:
    made = torch.Generator().manual_seed(7)
    return torch.randn(steps, SIZE, 4, 6, generator=made, dtype=torch.float64)


def losses_of_one_process(steps: int) -> list[float]:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for batch in data_of(steps):
        optimizer.zero_grad()
        loss = model(batch.reshape(-1, 6)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def losses_of(model: Any, steps: int) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for batch in data_of(steps):
        optimizer.zero_grad()
        loss = model(batch[RANK]).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(float(mean))
    return losses


@pytest.mark.parametrize("hook", ["none", "float16", "PowerSGD"])
def test_ddp_trains_like_one_process(hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    # PowerSGD starts operations from callbacks: with several buckets in no order that ranks share.
    few = {} if hook == "PowerSGD" else {"bucket_cap_mb": 0.0002}
    model = torch.nn.parallel.DistributedDataParallel(model_of(), **few)
    if hook == "float16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses = losses_of(model, 6)
    rough = {"rtol": 5e-2, "atol": 1e-3} if hook != "none" else {}
    expected = torch.tensor(losses_of_one_process(6))
    torch.testing.assert_close(torch.tensor(losses), expected, **rough)


def test_fsdp2_trains_like_one_process() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("torch is older than 2.6, whose FSDP2 wants a GPU")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = model_of()
    mesh = init_device_mesh("cpu", (SIZE,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.testing.assert_close(losses_of(model, 5), losses_of_one_process(5))


def test_tensors_on_a_mesh() -> None:
    pytest.importorskip("torch.distributed.device_mesh", reason="torch is older than 2.2")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("outer", "inner"))
    x = torch.arange(6.0 * SIZE).reshape(2 * SIZE, 3)
    sharded = distribute_tensor(x, mesh["inner"], [Shard(0)])
    assert sharded.to_local().shape == (2, 3)
    assert torch.equal(sharded.full_tensor(), x)
    assert torch.equal(sharded.sum().full_tensor(), x.sum())
    assert torch.equal(sharded.redistribute(mesh["inner"], [Replicate()]).to_local(), x)


def test_functional_collectives() -> None:
    from torch.distributed import _functional_collectives as functional

    x = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert (x + 0 == SIZE).all()
    y = functional.all_gather_tensor(torch.full((2,), RANK), 0, dist.group.WORLD)
    assert (y + 0).tolist() == [rank for rank in range(SIZE) for _ in (0, 1)]


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_errors_of_functional_collectives_come_when_the_result_is_used() -> None:
    from torch.distributed import _functional_collectives as functional

    x = functional.all_reduce(torch.ones(3 + (RANK == 0)), "sum", dist.group.WORLD)
    with pytest.raises(ValueError, match="Mismatched allreduce tensor shapes"):
        x + 0
    y = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert (y + 0 == SIZE).all()


def calls_with(x: Any, group: Any = None, beside: str = "cpu") -> dict[str, Callable[[], Any]]:
    """Every collective with this tensor of SIZE elements, and others on a device."""
    host = torch.empty(SIZE, dtype=x.dtype, device=beside)
    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
        "reduce": lambda: dist.reduce(x, 0, group=group),
        "all_gather": lambda: dist.all_gather([host] * SIZE, x, group=group),
        "all_gather of other sizes": lambda: dist.all_gather([x] * SIZE, host[:1], group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(host, x[:1], group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(x[:1], [host[:1]] * SIZE, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(host[:1], x, group=group),
        "reduce_scatter_tensor's output": lambda: dist.reduce_scatter_tensor(
            x[:1], host, group=group
        ),
        "gather": lambda: dist.gather(x, [host] * SIZE if RANK == 0 else None, 0, group=group),
        "scatter": lambda: dist.scatter(x, [host] * SIZE if RANK == 0 else None, 0, group=group),
        "all_to_all": lambda: dist.all_to_all(list(host.split(1)), list(x.split(1)), group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(host, x, group=group),
        "all_to_all_single's output": lambda: dist.all_to_all_single(x, host, group=group),
        "send": lambda: dist.isend(x, (RANK + 1) % SIZE, group=group),
        "recv": lambda: dist.irecv(x, (RANK - 1) % SIZE, group=group),
    }


@pytest.mark.parametrize("call", calls_with(torch.empty(0)))
@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_tensors_that_are_not_on_the_host_are_refused(call: str) -> None:
    with pytest.raises(ValueError, match="the tensor is on meta"):
        calls_with(torch.ones(SIZE, device="meta"))[call]()


@since(2, 2)
@pytest.mark.parametrize(
    "call", ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"]
)
def test_types_that_have_no_sum_here_are_refused_by_name_and_moved_all_the_same(call: str) -> None:
    x = torch.ones(SIZE).to(torch.float8_e4m3fnuz)
    with pytest.raises(ValueError, match=r"does not reduce torch\.float8_e4m3fnuz"):
        calls_with(x)[call]()
    dist.broadcast(x, 0)
    dist.all_to_all_single(torch.empty_like(x), x)


def test_tensors_elsewhere_have_a_group_of_another_backend() -> None:
    other = dist.new_group(backend="gloo")
    x = torch.ones(2)
    dist.all_reduce(x, group=other)
    dist.all_reduce(x)
    assert (x == SIZE * SIZE).all()


class Noting(dist.ProcessGroup):  # type: ignore[misc]
    """A backend for another device, which notes what it is asked for."""

    def __init__(self, *_: Any) -> None:
        super().__init__(RANK, SIZE)
        self.noted: list[str] = []

    def _get_backend(self, device: Any) -> Any:
        return self

    def __getattribute__(self, name: str) -> Any:
        if name in process_group.COLLECTIVES:
            self.noted.append(name)
            return lambda *_, **__: GradredWork([], lambda: None, [], None)
        return super().__getattribute__(name)


@pytest.fixture(scope="module")
def of_two_devices() -> Any:
    dist.Backend.register_backend("noting", Noting, devices=["meta"])
    return dist.new_group(backend="cpu:gradred,meta:noting")


@pytest.mark.parametrize("call", calls_with(torch.empty(0)))
@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_tensors_on_other_devices_go_to_the_backend_asked_for(
    call: str, of_two_devices: Any
) -> None:
    calls_with(torch.ones(SIZE, device="meta"), of_two_devices, "meta")[call]()
    noting = of_two_devices.other_devices.group_for(torch.device("meta"))
    assert isinstance(noting, Noting)
    assert len(noting.noted) == 1
    noting.noted.clear()
    x = torch.ones(2)
    dist.all_reduce(x, group=of_two_devices)
    assert (x == SIZE).all()
    assert noting.noted == []


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_what_is_asked_for_is_handed_on_whole(of_two_devices: Any) -> None:
    x, y = (torch.ones(SIZE, device="meta") for _ in range(2))
    group = of_two_devices
    calls = {
        "allreduce_coalesced": ([x, y],),
        "all_gather_single_coalesced": ([x], [y[:1]]),
        "allgather_into_tensor_coalesced": ([x], [y[:1]]),
        "allgather_coalesced": ([[x] * SIZE], [y]),
        "reduce_scatter_single_coalesced": ([x[:1]], [y]),
        "reduce_scatter_tensor_coalesced": ([x[:1]], [y]),
    }
    noting = group.other_devices.group_for(torch.device("meta"))
    for name, arguments in calls.items():
        getattr(group, name)(*arguments)
        assert noting.noted == [name]
        noting.noted.clear()
    batch = [
        dist.P2POp(dist.isend, x, (RANK + 1) % SIZE, group),
        dist.P2POp(dist.irecv, y, (RANK - 1) % SIZE, group),
    ]
    assert [one.group for one in map(other_devices.served, batch)] == [noting, noting]
    assert hasattr(dist.batch_isend_irecv, "__wrapped__"), "torch's own is asked"
    dist.batch_isend_irecv(batch)
    assert sorted(noting.noted) == ["recv", "send"]
    noting.noted.clear()


def test_a_call_that_is_handed_on_keeps_no_tensor(of_two_devices: Any) -> None:
    x = torch.ones(SIZE, device="meta")
    seen = weakref.ref(x)
    dist.all_reduce(x, group=of_two_devices)
    of_two_devices.other_devices.group_for(torch.device("meta")).noted.clear()
    gc.disable()
    try:
        del x
        assert seen() is None
    finally:
        gc.enable()


@since(2, 6)
def test_a_device_of_the_group_whose_backend_torch_asks_for_before_it_knows_the_group(
    of_two_devices: Any,
) -> None:
    core, device = dist.distributed_c10d, torch.device("meta:0")
    store = core._world.pg_map[of_two_devices][1]
    ranks = list(range(SIZE))
    named: dict[str, Any] = {"group_name": "bound", "device_id": device}
    named["timeout"] = datetime.timedelta(seconds=60)
    made, _ = core._new_process_group_helper(
        SIZE, RANK, ranks, "cpu:gradred,meta:noting", store, **named
    )
    core._world.pg_group_ranks[made] = {rank: rank for rank in ranks}
    assert isinstance(made.other_devices.group_for(device), Noting)
    x = torch.ones(2)
    dist.all_reduce(x, group=made)
    assert (x == SIZE).all()


def test_another_backend_may_have_the_host() -> None:
    group = dist.new_group(backend="cpu:gloo,cuda:gradred")
    assert isinstance(group._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
    assert group._get_backend(torch.device("cuda")) is group
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert (x == SIZE).all()


def test_a_group_of_two_backends_gives_each_device_its_own() -> None:
    group = dist.new_group(backend="cpu:gradred,cuda:gloo")
    assert group._get_backend(torch.device("cpu")) is group
    assert isinstance(group._get_backend(torch.device("cuda")), dist.ProcessGroupGloo)
    with pytest.raises(RuntimeError, match="backend"):
        group._get_backend(torch.device("xpu"))


def test_groups_that_are_destroyed_leave_memory_and_communicators_to_others() -> None:
    def make_and_destroy() -> bool:
        group = dist.new_group()
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        assert (x == SIZE).all()
        shares_memory = _core.comm_info(group._engine._comm)["shares_memory"]
        dist.barrier()
        dist.destroy_process_group(group)
        return shares_memory

    assert len({make_and_destroy() for _ in range(100)}) == 1


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
        late = ", ".join(f"rank {rank}" for rank in range(1, SIZE if all_ranks else 2))
        with pytest.raises(RuntimeError, match=f"not been reached by {late}\\b"):
            dist.monitored_barrier(group, datetime.timedelta(seconds=0.2), all_ranks)
    dist.barrier()
    dist.destroy_process_group(group)


@pytest.mark.skipif(SIZE == 1, reason="rank 0 alone")
def test_monitored_barrier_that_rank_zero_does_not_reach() -> None:
    group = dist.new_group(timeout=datetime.timedelta(seconds=30))
    if RANK != 0:
        with pytest.raises(RuntimeError, match="See rank 0's error"):
            dist.monitored_barrier(group, datetime.timedelta(seconds=0.2))
    dist.barrier()
    dist.destroy_process_group(group)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_of_the_group(dtype: Any) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    x = backend.allocate_tensor(70_000, dtype=dtype, device=torch.device("cpu"))
    assert (x.shape, x.dtype) == ((70_000,), dtype)
    x.fill_(RANK + 1)
    dist.all_reduce(x)
    assert (x == TOTAL).all()


def test_fsdp_with_memory_of_the_group() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard") or not hasattr(
        fsdp.FSDPModule, "set_allocate_memory_from_process_group_for_comm"
    ):
        pytest.skip("torch is older than 2.8")
    torch.manual_seed(1)
    model = fsdp.fully_shard(torch.nn.Linear(64, 64))
    model.set_allocate_memory_from_process_group_for_comm(True)
    torch.manual_seed(1)
    alone = torch.nn.Linear(64, 64)
    x = torch.ones(4, 64)
    torch.testing.assert_close(model(x), alone(x))
    model(x).sum().backward()
    alone(x).sum().backward()
    torch.testing.assert_close(model.weight.grad.full_tensor(), alone.weight.grad)


def test_refused_arguments_of_one_rank_are_an_error_on_all_and_the_group_goes_on() -> None:
    if SIZE == 1:
        pytest.skip("takes several ranks")
    x = torch.ones(8)[::2] if RANK == 1 else torch.ones(4)
    with pytest.raises((ValueError, RuntimeError), match=r"not dense|rank 1 .*has refused"):
        dist.all_reduce(x)
    for value in (10.0, 100.0):
        x = torch.full((4,), value)
        dist.all_reduce(x)
        assert (x == SIZE * value).all()
