"""`import gradred.torch as hvd` in the place of Horovod, with ranks that mpiexec has started."""

from __future__ import annotations

import copy
import itertools
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("gradred.torch")

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _initialised() -> Iterator[None]:
    hvd.init(process_sets="dynamic")
    yield
    hvd.barrier()


def name() -> str:
    return f"test.{next(numbers)}"


NAMES = """
    Compression allgather_object broadcast_object broadcast_optimizer_state
    broadcast_parameters allreduce allreduce_async allreduce_ allreduce_async_ grouped_allreduce
    grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_ sparse_allreduce_async
    allgather allgather_async grouped_allgather grouped_allgather_async broadcast broadcast_async
    broadcast_ broadcast_async_ alltoall alltoall_async reducescatter reducescatter_async
    grouped_reducescatter grouped_reducescatter_async join barrier poll synchronize init shutdown
    is_initialized start_timeline stop_timeline size local_size cross_size rank local_rank
    cross_rank mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built
    ddl_built ccl_built cuda_built rocm_built ProcessSet global_process_set add_process_set
    remove_process_set Average Sum Adasum Min Max Product HorovodInternalError DistributedOptimizer
    SyncBatchNorm elastic mpi_ops functions optimizer compression _check_has_gpu
"""


@pytest.mark.parametrize("wanted", NAMES.split())
def test_names_of_horovod(wanted: str) -> None:
    assert hasattr(hvd, wanted)


def test_who_this_rank_is() -> None:
    assert 0 <= hvd.rank() < hvd.size()
    assert hvd.local_size() * hvd.cross_size() >= hvd.size() or not hvd.is_homogeneous()
    assert hvd.is_initialized()
    hvd.init()  # once more changes nothing
    assert hvd.mpi_built()
    assert not hvd.gloo_built()
    with pytest.raises(AttributeError):
        hvd.mpi_ops._basics.no_such_query()
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks()[0] == list(range(hvd.size()))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 40, 50)])
def test_sum_and_average(dtype: Any, shape: tuple[int, ...]) -> None:
    x = torch.full(shape, hvd.rank() + 1).to(dtype)
    total = hvd.size() * (hvd.size() + 1) // 2
    assert torch.equal(hvd.allreduce(x, op=hvd.Sum), torch.full(shape, total).to(dtype))
    average = hvd.allreduce(x, name=name())
    assert average.shape == x.shape
    expected = torch.full(shape, total / hvd.size())
    torch.testing.assert_close(average, expected.to(dtype), rtol=1e-2, atol=1e-2)
    assert torch.equal(x, torch.full(shape, hvd.rank() + 1).to(dtype))
    assert hvd.allreduce_(x, op=hvd.Max) is x
    assert torch.equal(x, torch.full(shape, hvd.size()).to(dtype))


def test_averages_of_integers_are_truncated_toward_zero() -> None:
    x = torch.tensor([3, -3], dtype=torch.int32) + (torch.tensor([1, -1]) * hvd.rank()).int()
    total = sum(3 + rank for rank in range(hvd.size()))
    expected = int(total / hvd.size())
    assert hvd.allreduce(x).tolist() == [expected, -expected]


def test_other_operations_and_factors() -> None:
    x = torch.full((5,), float(hvd.rank() + 1))
    factorial = float(torch.arange(1, hvd.size() + 1).prod())
    assert hvd.allreduce(x, op=hvd.Product).tolist() == [factorial] * 5
    assert hvd.allreduce(x, op=hvd.Min).tolist() == [1.0] * 5
    total = hvd.size() * (hvd.size() + 1) / 2
    scaled = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert scaled.tolist() == [1.5 * total] * 5
    with pytest.raises(ValueError, match="both are given"):
        hvd.allreduce(x, average=True, op=hvd.Sum)
    with pytest.warns(DeprecationWarning, match="pass op"):
        assert hvd.allreduce(x, average=False).tolist() == [total] * 5


def test_handles() -> None:
    tensors = [torch.full((n,), float(hvd.rank())) for n in (1, 10, 100_000)]
    handles = [hvd.allreduce_async_(x, None, name(), hvd.Sum) for x in tensors]
    assert handles == sorted(set(handles))
    for handle, x in reversed(list(zip(handles, tensors, strict=True))):
        assert hvd.synchronize(handle) is x
        assert (x == hvd.size() * (hvd.size() - 1) / 2).all()
        with pytest.raises(ValueError, match="no such handle"):
            hvd.poll(handle)
        assert hvd.synchronize(handle) is None


def test_any_order_of_names() -> None:
    tensors = [torch.full((i + 1,), float(hvd.rank() + i)) for i in range(30)]
    order = torch.randperm(30, generator=torch.Generator().manual_seed(hvd.rank())).tolist()
    handles = {i: hvd.allreduce_async(tensors[i], name=f"order.{i}", op=hvd.Sum) for i in order}
    for i, x in enumerate(tensors):
        expected = float(sum(rank + i for rank in range(hvd.size())))
        assert hvd.synchronize(handles[i]).tolist() == [expected] * len(x)


def test_groups() -> None:
    tensors = [torch.ones(3), torch.ones(2, 5000), torch.ones(4, dtype=torch.int64)]
    found = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    assert all((x == hvd.size()).all() for x in found)
    assert isinstance(found, list)
    in_place = hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    assert all(x is y for x, y in zip(in_place, tensors, strict=True))
    with pytest.raises(ValueError, match="no tensor"):
        hvd.grouped_allreduce([])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32, torch.bfloat16])
def test_allgather_of_uneven_rows(dtype: Any) -> None:
    x = torch.ones(hvd.rank() + 1, 2).to(dtype)
    total = hvd.size() * (hvd.size() + 1) // 2
    assert torch.equal(hvd.allgather(x), torch.ones(total, 2).to(dtype))
    first, second = hvd.grouped_allgather([x, x[:0]])
    assert first.shape == (total, 2)
    assert second.shape == (0, 2)
    with pytest.raises(ValueError, match="no axis"):
        hvd.allgather(torch.tensor(1.0))


def test_broadcast() -> None:
    for root in range(hvd.size()):
        x = torch.full((3, 4), hvd.rank())
        assert (hvd.broadcast(x, root) == root).all()
        assert (x == hvd.rank()).all()
        assert hvd.broadcast_(x, root) is x
        assert (x == root).all()
    with pytest.raises(ValueError, match="is not part of it"):
        hvd.broadcast(torch.ones(1), hvd.size())


def test_alltoall() -> None:
    rank, size = hvd.rank(), hvd.size()
    x = torch.arange(2 * size) + 100 * rank
    expected = [100 * other + 2 * rank + i for other in range(size) for i in (0, 1)]
    assert hvd.alltoall(x).tolist() == expected
    splits = torch.tensor([(rank + other) % 2 + 1 for other in range(size)], dtype=torch.int32)
    y = torch.full((int(splits.sum()), 3), float(rank))
    made, received = hvd.alltoall(y, splits)
    assert received.tolist() == [(rank + other) % 2 + 1 for other in range(size)]
    assert received.dtype == torch.int32
    assert torch.equal(made[:, 0], torch.repeat_interleave(torch.arange(size * 1.0), received))
    with pytest.raises(ValueError, match="int32"):
        hvd.alltoall(y, splits.long())
    with pytest.raises(ValueError, match="rows"):
        hvd.alltoall(y[1:], splits)


def test_reducescatter() -> None:
    x = torch.arange(2.0 * hvd.size() + 1).reshape(-1, 1).repeat(1, 3)
    mine = hvd.reducescatter(x, op=hvd.Sum)
    begin = 2 * hvd.rank() + min(hvd.rank(), 1)
    end = begin + 2 + (hvd.rank() == 0)
    assert torch.equal(mine, x[begin:end] * hvd.size())
    assert torch.equal(hvd.reducescatter(x), x[begin:end])
    with pytest.raises(hvd.HorovodInternalError):
        hvd.reducescatter(x, op=hvd.Max)


def test_gradients_flow_through_the_operations() -> None:
    size = hvd.size()

    def gradient_of(function: Any) -> Any:
        x = torch.ones(size, 2, requires_grad=True)
        function(x).sum().backward()
        return x.grad

    assert (gradient_of(lambda x: hvd.allreduce(x, op=hvd.Sum)) == size).all()
    assert (gradient_of(hvd.allreduce) == 1).all()
    assert (gradient_of(lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)[0]) == size).all()
    assert (gradient_of(hvd.allgather) == 1).all()
    root = gradient_of(lambda x: hvd.broadcast(x, 0))
    assert (root == (1 if hvd.rank() == 0 else 0)).all()
    assert (gradient_of(hvd.alltoall) == 1).all()
    assert (gradient_of(lambda x: hvd.reducescatter(x, op=hvd.Sum)) == size).all()


@pytest.mark.parametrize("wrong", ["complex256", "cuda-like", "sparse", "not dense"])
def test_what_cannot_be_sent_is_refused_at_once(wrong: str) -> None:
    if wrong == "sparse":
        x = torch.ones(3).to_sparse()
    elif wrong == "cuda-like":
        x = torch.ones(3, device="meta")
    elif wrong == "not dense":
        x = torch.ones(6)[::2]
    else:
        x = torch.ones(3, dtype=torch.complex32)
    with pytest.raises(ValueError, match="allreduce"):
        hvd.allreduce_async_(x, name=name())


def test_dense_layouts_need_no_copy_and_have_to_be_the_same() -> None:
    x = torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    last = x.to(memory_format=torch.channels_last)
    assert torch.equal(hvd.allreduce(last, op=hvd.Sum), x * hvd.size())
    if hvd.size() == 1:
        return
    mine = last if hvd.rank() == 0 else x
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
        hvd.allreduce(mine, name=name())


@pytest.mark.skipif("hvd.size() == 1")
def test_ranks_that_differ_get_an_error_on_all_and_go_on() -> None:
    x = torch.ones(3 + (hvd.rank() == 0))
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched allreduce tensor shapes"):
        hvd.allreduce(x, name="differ")
    handle = hvd.allreduce_async(torch.ones(1), name=f"twice.{hvd.rank()}")
    with pytest.raises(ValueError, match="has not ended"):
        hvd.allreduce_async(torch.ones(1), name=f"twice.{hvd.rank()}")
    for other in range(hvd.size()):
        if other != hvd.rank():
            hvd.allreduce(torch.ones(1), name=f"twice.{other}")
    assert hvd.synchronize(handle).item() == 1


def test_join() -> None:
    for _ in range(hvd.rank() + 1):
        hvd.allreduce(torch.ones(4), name="joined")
    assert hvd.join() == hvd.size() - 1


def test_process_sets() -> None:
    from mpi4py import MPI

    size, rank = hvd.size(), hvd.rank()
    sets = (
        [hvd.add_process_set([r for r in range(size) if r % 2 == odd]) for odd in (0, 1)][
            : min(size, 2)
        ]
        if size > 2
        else []
    )
    for one in sets:
        assert one.included() == (rank in one.ranks)
        if not one.included():
            with pytest.raises(ValueError, match="is not part of it"):
                hvd.allreduce(torch.ones(1), process_set=one)
            continue
        total = hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, process_set=one, name="same")
        assert total.item() == sum(one.ranks)
        root = one.ranks[-1]
        assert hvd.broadcast(torch.tensor([rank]), root, process_set=one).item() == root
    for one in sets:
        number, engine = one.process_set_id, one._engine
        assert hvd.remove_process_set(one)
        assert str(one) == f"ProcessSet(process_set_id=None, ranks={one.ranks}, mpi_comm=None)"
        assert number is not None
        assert engine is None or engine._comm == MPI.COMM_NULL
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="exists"):
        hvd.add_process_set(range(size))


def test_objects() -> None:
    objects = hvd.allgather_object({"rank": hvd.rank(), "data": "x" * 100 * hvd.rank()})
    assert [found["rank"] for found in objects] == list(range(hvd.size()))
    assert hvd.broadcast_object([1, "two"] if hvd.rank() == 0 else None) == [1, "two"]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.9)),
        lambda p: torch.optim.RMSprop(p),
        lambda p: torch.optim.Adagrad(p),
    ],
)
def test_optimizers_get_the_state_of_one_rank(make: Any) -> None:
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 3)
    optimizer = make(model.parameters())
    if hvd.rank() == 0:  # only the root has a state
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.5
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.param_groups[0]["lr"] == 0.5
    for values in optimizer.state.values():
        for value in values.values():
            if isinstance(value, torch.Tensor):
                all_of_them = hvd.allgather(value.reshape(1, -1).float())
                assert all(torch.equal(one, all_of_them[0]) for one in all_of_them)
    assert len(optimizer.state) == (2 if optimizer.state else 0)
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)


# ---- DistributedOptimizer -----------------------------------------------------------------------


def model_of(seed: int = 1) -> Any:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers).double()


def batches(steps: int, passes: int = 1) -> Any:
    """The same on all ranks: of each step and pass, the part of each rank."""
    made = torch.Generator().manual_seed(7)
    return torch.randn(steps, passes, hvd.size(), 4, 6, generator=made, dtype=torch.float64)


def losses_of_one_process(data: Any, make: Any) -> list[float]:
    model = model_of()
    optimizer = make(model.parameters())
    losses = []
    for step in data:
        optimizer.zero_grad()
        loss = sum(model(x.reshape(-1, 6)).square().mean() for x in step)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "named": {"named": True},
    "groups": {"groups": 2},
    "predivide": {"gradient_predivide_factor": 2.0},
    "two passes": {"backward_passes_per_step": 2},
    "float32 on the wire": {"compression": "bf16"},
    "buckets": {"gradient_as_bucket_view": True},
    "buckets, two passes": {"gradient_as_bucket_view": True, "backward_passes_per_step": 2},
    "buckets, float32 on the wire": {"gradient_as_bucket_view": True, "compression": "bf16"},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.01),
    ],
)
def test_training_is_that_of_one_process_on_all_batches(options: str, make: Any) -> None:
    given = dict(OPTIONS[options])
    passes = given.get("backward_passes_per_step", 1)
    data = batches(6, passes)
    model = model_of(hvd.rank())
    hvd.broadcast_parameters(model_of().state_dict() if hvd.rank() == 0 else model.state_dict(), 0)
    model.load_state_dict(hvd.broadcast_object(model_of().state_dict(), 0))
    if given.pop("named", False):
        given["named_parameters"] = model.named_parameters()
    if "compression" in given:
        given["compression"] = hvd.Compression.bf16
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), **given)
    assert isinstance(optimizer, (torch.optim.SGD, torch.optim.AdamW))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    losses = []
    for step in data:
        optimizer.zero_grad()
        own = torch.zeros((), dtype=torch.float64)
        for x in step:
            loss = model(x[hvd.rank()]).square().mean()
            loss.backward()
            own += loss.detach()
        optimizer.step()
        scheduler.step()
        losses.append(float(hvd.allreduce(own)))
    close = {"rtol": 2e-2, "atol": 1e-3} if "float32 on the wire" in options else {}
    expected = losses_of_one_process(data, make)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), **close)


@pytest.mark.parametrize("as_view", [False, True])
def test_clipping_between_synchronize_and_step(as_view: bool) -> None:
    model = model_of()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, gradient_as_bucket_view=as_view)
    model(batches(1)[0, 0, hvd.rank()]).square().sum().backward()
    optimizer.synchronize()
    norms = hvd.allgather(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).reshape(1))
    assert (norms == norms[0]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.zero_grad()
    model(batches(1)[0, 0, hvd.rank()]).square().sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="without optimizer.skip_synchronize"):
        optimizer.step()


@pytest.mark.parametrize("as_view", [False, True])
def test_parameters_without_a_gradient_on_some_ranks(as_view: bool) -> None:
    a, b = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    sgd = torch.optim.SGD([a, b], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_as_bucket_view=as_view)
    (a.sum() if hvd.rank() % 2 == 0 else b.sum()).backward()
    optimizer.step()
    even = (hvd.size() + 1) // 2
    assert a.tolist() == [1.0 - even] * 3
    assert b.tolist() == [1.0 - (hvd.size() - even)] * 3


@pytest.mark.skipif("hvd.size() == 1")
@pytest.mark.parametrize("to_none", [False, True])
def test_gradients_are_views_of_buckets_again_after_each_backward_pass(to_none: bool) -> None:
    shapes = [(3, 5), (7,), (2, 3, 4, 5), (1500, 1000), (40,)]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    parameters[2] = torch.nn.Parameter(
        torch.zeros(shapes[2]).contiguous(memory_format=torch.channels_last)
    )
    parameters.append(torch.nn.Parameter(torch.zeros(9, dtype=torch.bfloat16)))
    sgd = torch.optim.SGD(parameters, lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_as_bucket_view=True)
    places = []
    for step in range(1, 4):
        for index, parameter in enumerate(parameters):
            (parameter * (index + step + hvd.rank())).sum().backward()
        optimizer.synchronize()
        for index, parameter in enumerate(parameters):
            expected = sum(index + step + rank for rank in range(hvd.size()))
            assert parameter.grad is not None
            assert (parameter.grad == expected).all()
            assert parameter.grad.stride() == parameter.stride()
        places.append([parameter.grad.data_ptr() for parameter in parameters])  # type: ignore[union-attr]
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        assert all((parameter.grad is None) == to_none for parameter in parameters)
    assert places[0] == places[1] == places[2]
    assert (parameters[-2] == -sum(4 + s + r for s in (1, 2, 3) for r in range(hvd.size()))).all()


@pytest.mark.skipif("hvd.size() == 1")
def test_buckets_have_one_order_where_ranks_list_their_parameters_in_others() -> None:
    named = [(f"order.{index}", torch.nn.Parameter(torch.zeros(3 + index))) for index in range(5)]
    named = named[hvd.rank() :] + named[: hvd.rank()]
    sgd = torch.optim.SGD([parameter for _, parameter in named], lr=1.0)
    given = {"op": hvd.Sum, "gradient_as_bucket_view": True}
    optimizer = hvd.DistributedOptimizer(sgd, named, **given)
    for name, parameter in named:
        (parameter * int(name[-1])).sum().backward()
    optimizer.step()
    for name, parameter in named:
        assert (parameter == -hvd.size() * int(name[-1])).all()
    others = [(f"{name}.{hvd.rank() % 2}", parameter) for name, parameter in named]
    with pytest.raises(ValueError, match="other parameters") if hvd.rank() % 2 else nullcontext():
        hvd.DistributedOptimizer(sgd, others, gradient_as_bucket_view=True)


def test_buckets_take_no_sparse_gradients() -> None:
    table = torch.nn.Embedding(4, 3, sparse=True)
    sgd = torch.optim.SGD(table.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(
        sgd, sparse_as_dense=True, op=hvd.Sum, gradient_as_bucket_view=True
    )
    with torch.no_grad():
        table.weight.zero_()
    table(torch.tensor([1, 1])).sum().backward()
    optimizer.step()
    assert table.weight.tolist()[:2] == [[0.0] * 3, [-2.0 * hvd.size()] * 3]
    if hvd.size() == 1:
        return
    optimizer = hvd.DistributedOptimizer(sgd, gradient_as_bucket_view=True)
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="sparse_as_dense"):
        table(torch.tensor([1])).sum().backward()


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(as_dense: bool) -> None:
    table = torch.nn.Embedding(10, 2, sparse=True)
    torch.nn.init.ones_(table.weight)
    inner = torch.optim.SGD(table.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, op=hvd.Sum, sparse_as_dense=as_dense)
    table(torch.tensor([0, hvd.rank() + 1])).sum().backward()
    optimizer.step()
    expected = torch.ones(10, 2)
    expected[0] -= hvd.size()
    expected[1 : hvd.size() + 1] -= 1
    assert torch.equal(table.weight.detach(), expected)


@pytest.mark.skipif("hvd.size() == 1")
def test_misuse_of_the_optimizer_is_told() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    x = batches(1)[0, 0, hvd.rank()]
    model(x).sum().backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        model(x).sum().backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()


@pytest.mark.parametrize(
    "given",
    [
        {"backward_passes_per_step": 0},
        {"gradient_predivide_factor": 2.0, "op": 1},
        {"groups": 0},
        {"groups": ["no tensor"]},
        {"named_parameters": [("one", torch.nn.Parameter(torch.ones(1)))]},
        {"named_parameters": ["no pair"]},
    ],
)
def test_arguments_of_the_optimizer_that_do_not_fit(given: Any) -> None:
    inner = torch.optim.SGD(model_of().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="DistributedOptimizer"):
        hvd.DistributedOptimizer(inner, **given)


def test_autocast_and_grad_scaler() -> None:
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("torch is older than 2.3, which scales on GPUs alone")
    model = model_of().float()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batches(1)[0, 0, hvd.rank()].float()).square().mean()
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    weights = hvd.allgather(model[0].weight.detach().reshape(1, -1))
    assert all(torch.equal(one, weights[0]) for one in weights)


def test_state_of_the_optimizer_comes_back() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()))
    model(batches(1)[0, 0, hvd.rank()]).sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    model(batches(1)[0, 0, hvd.rank()]).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all((p.grad == 0).all() for p in model.parameters())


def test_it_may_begin_again_after_its_end() -> None:
    hvd.barrier()
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.rank()
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        hvd.allreduce(torch.ones(1))
    hvd.init(process_sets="dynamic")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_batch_normalisation_is_that_of_all_batches_together() -> None:
    torch.manual_seed(0)
    data = torch.randn(4 * hvd.size(), 3, 5, dtype=torch.float64) * 3 + 1
    whole, part = torch.nn.BatchNorm1d(3).double(), hvd.SyncBatchNorm(3).double()
    own = data[4 * hvd.rank() : 4 * hvd.rank() + 4].clone().requires_grad_()
    everything = data.clone().requires_grad_()
    expected = whole(everything)
    found = part(own)
    mine = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
    torch.testing.assert_close(found, expected[mine])
    torch.testing.assert_close(part.running_mean, whole.running_mean)
    torch.testing.assert_close(part.running_var, whole.running_var)
    expected.pow(3).sum().backward()
    found.pow(3).sum().backward()
    torch.testing.assert_close(own.grad, everything.grad[mine])
    torch.testing.assert_close(part.eval()(data), whole.eval()(data))


def test_elastic_training_goes_back_to_its_last_commit() -> None:
    model = model_of(hvd.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = hvd.elastic.TorchState(model, optimizer, batch=0, seen=[])
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(state.batch)])

    @hvd.elastic.run
    def train(state: Any) -> int:
        wrapped = hvd.DistributedOptimizer(state.optimizer)
        while state.batch < 6:
            wrapped.zero_grad()
            model(batches(1)[0, 0, hvd.rank()]).sum().backward()
            wrapped.step()
            state.batch += 1
            if state.batch == 3 and not resets:
                raise hvd.HorovodInternalError("as if an operation had failed")
            if state.batch % 2 == 0:
                state.commit()
        return int(state.batch)

    assert train(state) == 6
    assert resets == [2]
    weights = hvd.allgather(model[0].weight.detach().reshape(1, -1))
    assert all(torch.equal(one, weights[0]) for one in weights)


def test_a_sampler_gives_what_has_not_been_used() -> None:
    sampler = hvd.elastic.ElasticSampler(range(10 * hvd.size() + 1), shuffle=True, seed=3)
    assert len(sampler) == 11
    first = list(sampler)
    sampler.record_batch(0, 4)
    sampler.load_state_dict(sampler.state_dict())
    left = list(sampler)
    assert len(sampler) == len(left) == 7
    everyone = hvd.allgather_object((first[:4], left))
    used = {i for one, _ in everyone for i in one}
    rest = {i for _, one in everyone for i in one}
    assert not used & rest
    assert used | rest == set(range(10 * hvd.size() + 1))
    sampler.set_epoch(1)
    assert sampler.processed_num == 0


def test_horovods_own_names_lead_here() -> None:
    import gradred.horovod

    gradred.horovod.install()
    import horovod
    import horovod.torch
    import horovod.torch.elastic.state
    import horovod.torch.mpi_ops
    from horovod.common.exceptions import HorovodInternalError
    from horovod.common.util import is_version_greater_equal_than, split_list

    assert horovod.torch is hvd
    assert horovod.torch.mpi_ops is hvd.mpi_ops
    assert HorovodInternalError is hvd.HorovodInternalError
    assert is_version_greater_equal_than(horovod.__version__, "0.20.0")
    assert split_list([1, 2, 3], 2) == [[1, 2], [3]]


# ---- tensors that the core looks at by itself ---------------------------------------------------


class Marked(torch.Tensor):  # type: ignore[misc]
    """A type that may mean something else by its methods."""


def looked_at(make: Any) -> bool:
    """Whether the core has taken such a tensor, or left it to the closer look."""
    tensor = make()
    engine = hvd.global_process_set.engine()
    request = engine.submit_tensor(name(), tensor, tensor, "sum", 1.0, 1.0)
    if request is None:
        return False
    assert request.wait_for_held() is tensor
    torch.testing.assert_close(tensor.detach(), hvd.size() * make().detach())
    return True


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this PyTorch is too old for it"
)
def test_which_tensors_the_core_looks_at() -> None:
    assert all(looked_at(lambda kind=kind: torch.ones(5).to(kind)) for kind in FLOATS + INTEGERS)
    assert looked_at(lambda: torch.nn.Parameter(torch.ones(2, 3)))
    assert looked_at(lambda: torch.ones(6, 7)[2:4])
    assert looked_at(lambda: torch.ones(()))
    assert looked_at(lambda: torch.ones(0, 3))
    assert looked_at(lambda: torch.ones(4, 1).t())
    assert not looked_at(lambda: torch.ones(4, 5).t())
    assert not looked_at(lambda: torch.ones(8)[::2])
    assert not looked_at(lambda: torch.ones(3, dtype=torch.complex64))
    assert not looked_at(lambda: torch.eye(3).to_sparse())
    assert not looked_at(lambda: torch.ones(3, device="meta"))
    assert not looked_at(lambda: torch.ones(3).as_subclass(Marked))
    assert not looked_at(lambda: [1.0, 2.0])


def test_tensors_of_operations_that_nobody_waits_for_stay_until_they_have_ended() -> None:
    size = hvd.size()
    results = []
    for _ in range(50):
        out = hvd.allreduce_async(torch.ones(1000), name=name(), op=hvd.Sum)
        results.append(out)
        hvd.allreduce_async_(torch.ones(1000), name=name(), op=hvd.Sum)  # forgotten
    for handle in results:
        assert bool((hvd.synchronize(handle) == size).all())


def test_name_in_flight_is_refused_and_its_tensor_unharmed() -> None:
    tensor, twice = torch.ones(100), name()
    if hvd.rank() == 0 and hvd.size() > 1:  # the others come later
        handle = hvd.allreduce_async_(tensor, name=twice, op=hvd.Sum)
        with pytest.raises(Exception, match="has been submitted and has not ended"):
            hvd.allreduce_async_(torch.ones(100), name=twice, op=hvd.Sum)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async_(tensor, name=twice, op=hvd.Sum)
    hvd.synchronize(handle)
    assert bool((tensor == hvd.size()).all())


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    """Rank 0's."""
    return Path(hvd.broadcast_object(str(tmp_path), 0))


def events_of(path: Path) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", json.loads(path.read_text()))


def test_timeline_has_horovods_events(shared_folder: Path) -> None:
    path = shared_folder / "timeline.{rank}.json"
    own, label = Path(str(path).replace("{rank}", str(hvd.rank()))), name()
    hvd.start_timeline(str(path), mark_cycles=True)
    assert [event["ph"] for event in events_of(own)] == ["M"]
    handles = [hvd.allreduce_async(torch.ones(2, 3), name=f'{label}."{i}"') for i in range(3)]
    started = events_of(own)  # complete at any moment
    for handle in handles:
        hvd.synchronize(handle)
    hvd.allgather(torch.ones(hvd.rank() + 1), name=label)
    if hvd.size() > 1:
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            hvd.allreduce(torch.ones(hvd.rank() + 1), name=f"{label}.wrong")
    hvd.barrier()
    hvd.stop_timeline()
    hvd.allreduce(torch.ones(1), name=f"{label}.later")
    events = events_of(own)
    assert events[: len(started)] == started
    processes = {
        event["args"]["name"]: event["pid"]
        for event in events
        if event.get("name") == "process_name" and event["pid"]
    }
    assert not any("later" in process for process in processes)
    mine = [event for event in events if event["pid"] == processes[f'allreduce.{label}."1"']]
    begun = [event["name"] for event in mine if event["ph"] == "B"]
    assert begun == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "QUEUE", "GRADRED_ALLREDUCE"]
    assert len([event for event in mine if event["ph"] == "E"]) == len(begun)
    times = [event["ts"] for event in mine if event["ph"] in "BEX"]
    assert times == sorted(times)
    ticks = [int(event["name"]) for event in mine if event["ph"] == "X"]
    assert ticks[0] == hvd.rank()
    assert all(tick in range(hvd.size()) for tick in ticks)
    # The second: who was last, which ranks of several hosts do not know.
    assert len(ticks) == (1 if "TEST_HOSTS" in os.environ else 2)
    ended = [event["args"] for event in mine if event["ph"] == "E" and "args" in event]
    assert [(args["dtype"], args["shape"]) for args in ended] == [("float32", "[2, 3]")]
    assert sum(event.get("name") == "CYCLE_START" for event in events) >= 2
    if hvd.size() > 1:
        wrong = [event for event in events if event["pid"] == processes[f"allreduce.{label}.wrong"]]
        assert any(event.get("name") == "ERROR" for event in wrong)
        assert any("shape" in event.get("args", {}).get("error", "") for event in wrong)
    assert f"allgather.{label}" in processes
    hvd.stop_timeline()


def test_timeline_is_rank_zeros_and_names_process_sets(shared_folder: Path) -> None:
    path, label = shared_folder / "one.json", name()
    ranks = list(range(hvd.size()))[::2]
    hvd.init(process_sets="dynamic")
    hvd.start_timeline(str(path))
    added = hvd.size() > 1
    one = hvd.add_process_set(hvd.ProcessSet(ranks)) if added else hvd.global_process_set
    if hvd.rank() in ranks:
        hvd.allreduce(torch.ones(1), name=label, process_set=one)
    hvd.barrier()
    hvd.stop_timeline()
    if hvd.rank() == 0:
        text = path.read_text()
        prefix = f"set {one.process_set_id}: " if added else ""
        assert f'"{prefix}allreduce.{label}"' in text
        assert "CYCLE_START" not in text
        with pytest.raises(OSError, match="no such folder"):
            hvd.start_timeline(str(shared_folder / "no such folder" / "t.json"))
    if added:
        hvd.remove_process_set(one)


@pytest.mark.skipif("not os.path.exists('/dev/full')")
def test_timeline_on_a_full_disk_is_told_of() -> None:
    hvd.start_timeline("/dev/full")
    hvd.allreduce(torch.ones(1), name=name())
    with pytest.warns(UserWarning, match="No space left") if hvd.rank() == 0 else nullcontext():
        hvd.stop_timeline()


def test_timeline_by_variable(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shared_folder / "by variable.json"
    hvd.barrier()
    hvd.shutdown()
    monkeypatch.setenv("HOROVOD_TIMELINE", str(path))
    monkeypatch.setenv("HOROVOD_TIMELINE_MARK_CYCLES", "1")
    hvd.init(process_sets="dynamic")
    hvd.allreduce(torch.ones(1), name="by variable")
    if hvd.rank() == 0:
        text = path.read_text()
        assert "allreduce.by variable" in text
        assert "CYCLE_START" in text
    hvd.barrier()
    hvd.stop_timeline()


def adasum_of(vectors: list[Any]) -> Any:
    """By its definition, pair by pair."""
    while len(vectors) > 1:
        combined = []
        for a, b in zip(vectors[::2], vectors[1::2], strict=True):
            of_a = 1 - a @ b / (2 * (a @ a)) if a @ a > 0 else 1
            of_b = 1 - a @ b / (2 * (b @ b)) if b @ b > 0 else 1
            combined.append(of_a * a + of_b * b)
        vectors = combined
    return vectors[0]


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


@pytest.mark.skipif("not is_power_of_two(hvd.size())")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", ["ordinary", "near the largest's root", "tiny", "zero"])
def test_adasum_is_what_its_definition_says(dtype: Any, size: str) -> None:
    made = torch.Generator().manual_seed(3)
    all_of_them = torch.randn(hvd.size(), 70_000, generator=made, dtype=torch.float64)
    info = torch.finfo(dtype)
    root = 0.1 * info.max**0.5
    scale = {"ordinary": 1.0, "near the largest's root": root, "tiny": info.tiny, "zero": 0.0}
    if dtype is torch.float64 and size != "zero":
        scale[size] = 1.0  # whose squares are out of range
    inputs = (all_of_them * scale[size]).to(dtype)
    x = inputs[hvd.rank()].clone().view(100, 700)
    expected = adasum_of(list(inputs.double() / (scale[size] or 1))) * scale[size]
    largest = float(inputs.abs().max())
    given = {
        "rtol": 4 * info.eps,
        "atol": 8 * max(largest * info.eps, info.smallest_normal * info.eps),
    }
    handle = hvd.allreduce_async(x, op=hvd.Adasum)
    assert x.flatten().equal(inputs[hvd.rank()])
    out = hvd.synchronize(handle)
    torch.testing.assert_close(out.flatten(), expected.to(dtype), **given)
    assert hvd.allreduce_(x, op=hvd.Adasum) is x
    assert x.equal(out)
    pair = hvd.grouped_allreduce([inputs[hvd.rank()], torch.ones(3)], op=hvd.Adasum)
    assert pair[0].equal(out.flatten())
    torch.testing.assert_close(pair[1], torch.ones(3))  # all alike: their average
    columns = inputs[hvd.rank()].clone().view(1, 7, 100, 100)
    columns = columns.contiguous(memory_format=torch.channels_last)
    in_columns = hvd.allreduce(columns, op=hvd.Adasum)
    torch.testing.assert_close(in_columns.flatten(), out.flatten(), **given)


@pytest.mark.skipif("not is_power_of_two(hvd.size())")
def test_adasum_of_what_points_elsewhere_is_the_sum() -> None:
    x = torch.zeros(hvd.size())
    x[hvd.rank()] = 3.0
    assert hvd.allreduce(x, op=hvd.Adasum).tolist() == [3.0] * hvd.size()
    scaled = hvd.allreduce(x, op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.5)
    assert scaled.tolist() == [3.0] * hvd.size()
    assert hvd.allreduce(torch.zeros(0), op=hvd.Adasum).shape == (0,)
    assert hvd.allreduce(torch.tensor(2.0), op=hvd.Adasum) == 2.0
    with pytest.raises(ValueError, match="not supported"):
        hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)
    if hvd.size() > 1:
        label = name()
        op = hvd.Adasum if hvd.rank() == 0 else hvd.Sum
        with pytest.raises(hvd.HorovodInternalError, match="allgather"):
            hvd.allreduce(torch.ones(2), op=op, name=label)


@pytest.mark.skipif("is_power_of_two(hvd.size())")
def test_adasum_takes_a_power_of_two_of_ranks() -> None:
    with pytest.raises(NotImplementedError, match="power of two"):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum)
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    with pytest.raises(NotImplementedError, match="power of two"):
        hvd.DistributedOptimizer(sgd, op=hvd.Adasum)


@pytest.mark.skipif("hvd.size() == 1 or not is_power_of_two(hvd.size())")
@pytest.mark.parametrize("passes", [1, 2])
def test_adasum_optimizer_reduces_what_steps_change(passes: int) -> None:
    model = model_of()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Adasum, backward_passes_per_step=passes)
    alone = [model_of() for _ in range(hvd.size())]
    plain = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in alone]
    for step in batches(3, passes):
        optimizer.zero_grad()
        for x in step:
            model(x[hvd.rank()]).square().mean().backward()
        optimizer.synchronize()
        optimizer.step()
        before = [[p.detach().clone() for p in m.parameters()] for m in alone]
        for rank, (its_model, its_optimizer) in enumerate(zip(alone, plain, strict=True)):
            its_optimizer.zero_grad()
            for x in step:
                its_model(x[rank]).square().mean().backward()
            its_optimizer.step()
        with torch.no_grad():
            for index, parameters in enumerate(zip(*(m.parameters() for m in alone), strict=True)):
                start = before[0][index]
                found = adasum_of([(p - start).flatten() for p in parameters]).view_as(start)
                for parameter in parameters:
                    parameter.copy_(start + found)
        for parameter, expected in zip(model.parameters(), alone[0].parameters(), strict=True):
            torch.testing.assert_close(parameter, expected)
    with pytest.raises(AssertionError, match="skip_synchronize"), optimizer.skip_synchronize():
        pass
    for _ in range(passes):
        model(batches(1)[0, 0, 0]).sum().backward()
    loss = model(batches(1)[0, 0, 0]).sum()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        loss.backward()


def checkpointed(model: Any) -> Any:
    """Whose activations are computed anew in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    return lambda x: checkpoint(model, x, use_reentrant=False)


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="aot_eager")


WRAPPED = {"checkpointed": checkpointed, "compiled": compiled}


@pytest.mark.timeout(180)  # the first import of the compiler takes long
@pytest.mark.skipif("hvd.size() != 2")
@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_models_that_compute_their_backward_pass_otherwise(wrapped: str, as_view: bool) -> None:
    data = batches(3)
    model = model_of()
    run = WRAPPED[wrapped](model)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, gradient_as_bucket_view=as_view)
    losses = []
    for step in data:
        optimizer.zero_grad()
        loss = run(step[0, hvd.rank()]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(hvd.allreduce(loss.detach())))
    expected = losses_of_one_process(data, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected))


def test_copy_of_a_model_trains_apart_from_it() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model(batches(1)[0, 0, hvd.rank()]).square().mean().backward()
    optimizer.step()
    other = copy.deepcopy(model)
    before = copy.deepcopy(model.state_dict())
    own = hvd.DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1))
    other(batches(1)[0, 0, hvd.rank()]).square().mean().backward()
    own.step()
    for key, value in model.state_dict().items():
        assert value.equal(before[key])
        assert not value.equal(other.state_dict()[key])
        assert hvd.allgather(other.state_dict()[key].reshape(1, -1)).unique(dim=0).shape[0] == 1


class _Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((6,), float(index), dtype=torch.float64)


@pytest.mark.timeout(180)  # each worker imports PyTorch
@pytest.mark.skipif("hvd.size() != 2")
@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_workers_of_data_loaders_live_beside_it(way: str) -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    given = {"num_workers": 1, "multiprocessing_context": way, "batch_size": 4}
    for x in torch.utils.data.DataLoader(_Numbers(), **given):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    weights = [parameter.detach().reshape(1, -1) for parameter in model.parameters()]
    for all_of_them in hvd.grouped_allgather(weights):
        assert all_of_them.unique(dim=0).shape[0] == 1
