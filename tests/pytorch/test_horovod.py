"""`import gradred.torch as hvd` in the place of Horovod, with ranks that mpiexec has started."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
from pytorch.given import FLOATS, INTEGERS, RANKS, name

from gradred import UsageError

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("gradred.torch")

pytestmark = pytest.mark.usefixtures("initialised")


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
    hvd.init()  # a second call changes nothing
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


@pytest.mark.parametrize(
    "wrong", ["complex256", "cuda-like", "sparse", "not dense", "negated", "negated and dense"]
)
def test_what_cannot_be_sent_is_refused_at_once(wrong: str) -> None:
    if wrong == "sparse":
        x = torch.ones(3).to_sparse()
    elif wrong == "cuda-like":
        x = torch.ones(3, device="meta")
    elif wrong == "not dense":
        x = torch.ones(6)[::2]
    elif wrong == "negated":  # its elements differ from those in memory
        x = torch.ones(1, dtype=torch.complex64).conj().imag
        assert x.is_neg()
        assert x.is_contiguous()
    elif wrong == "negated and dense":
        x = torch._neg_view(torch.ones(3))
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
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched allreduce memory layouts") as e:
        hvd.allreduce(mine, name="lies")
    text = str(e.value)
    own = "float32 [2, 3, 4, 5]" + " with its axes in the order (0, 2, 3, 1)" * (hvd.rank() == 0)
    assert f"'allreduce.lies' (on this rank allreduce of {own} with avg)" in text
    assert "rank 0 has [2, 3, 4, 5] with its axes in the order (0, 2, 3, 1), rank" in text or (
        ", rank 0 has [2, 3, 4, 5] with its axes in the order (0, 2, 3, 1)" in text
    )
    assert "has [2, 3, 4, 5] with its axes in the order (0, 1, 2, 3)" in text


def test_lengths_of_one_have_no_place_in_the_order_of_axes() -> None:
    """The strides of such axes mean nothing, and depend on how a tensor was made."""
    x = torch.ones(3, 1, 4).transpose(0, 2)
    mine = x if hvd.rank() == 0 else x.as_strided(x.shape, (1, 2, 4))
    assert (hvd.allreduce(mine, op=hvd.Sum, name=name()) == hvd.size()).all()


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (4, 2, 3, 3)])
def test_rows_of_channels_last_tensors_are_sent_as_those_of_others(shape: tuple[int, ...]) -> None:
    """Also if other ranks' tensors have another layout: rows are copied into order."""
    size = hvd.size()
    rows = torch.arange(float(size * np.prod(shape))).reshape(size * shape[0], *shape[1:])
    last = rows.to(memory_format=torch.channels_last) if hvd.rank() == 0 else rows
    mine = slice(hvd.rank() * shape[0], (hvd.rank() + 1) * shape[0])
    assert torch.equal(hvd.allgather(last[mine]), rows)
    assert torch.equal(hvd.reducescatter(last, op=hvd.Sum), rows[mine] * size)
    assert torch.equal(hvd.alltoall(last), torch.cat([rows[mine]] * size))
    assert torch.equal(hvd.grouped_allgather([last[mine]])[0], rows)


CALLS: dict[str, Any] = {
    "allreduce": lambda x: hvd.allreduce(x),
    "allreduce_": lambda x: hvd.allreduce_(x),
    "allreduce_async": lambda x: hvd.allreduce_async(x),
    "fp16": lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16),
    "grouped_allreduce": lambda x: hvd.grouped_allreduce([x]),
    "grouped_allreduce_": lambda x: hvd.grouped_allreduce_([x]),
    "sparse_allreduce": lambda x: hvd.sparse_allreduce_async(x, "sparse", hvd.Sum),
    "allgather": lambda x: hvd.allgather(x),
    "grouped_allgather": lambda x: hvd.grouped_allgather([x]),
    "broadcast": lambda x: hvd.broadcast(x, 0),
    "broadcast_": lambda x: hvd.broadcast_(x, 0),
    "alltoall": lambda x: hvd.alltoall(x),
    "reducescatter": lambda x: hvd.reducescatter(x),
    "grouped_reducescatter": lambda x: hvd.grouped_reducescatter([x]),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_tensor_is_named_with_what_to_pass(call: str) -> None:
    with pytest.raises(TypeError, match=r"the tensor is None.*Pass a tensor"):
        CALLS[call](None)
    with pytest.raises(UsageError, match=r"a list is not a tensor\. Pass torch\.as_tensor"):
        CALLS[call]([1.0])


def test_operations_of_another_library_are_refused_with_what_to_use() -> None:
    from mpi4py import MPI

    x = torch.ones(2)
    for call in (hvd.allreduce, hvd.allreduce_async_, hvd.reducescatter):
        with pytest.raises(TypeError, match=r"of type Op, .*Use Average, Sum"):
            call(x, op=MPI.SUM)
    with pytest.raises(UsageError, match=r"of type str, .*Use Average, Sum"):
        hvd.grouped_allreduce([x], op="sum")


@pytest.mark.skipif(RANKS < 3, reason="takes a set of some of the ranks")
def test_a_mismatch_in_a_process_set_names_the_set_and_the_ranks_among_all() -> None:
    last = hvd.size() - 1
    one = hvd.add_process_set([last - 1, last])
    if hvd.rank() in one.ranks:
        x = torch.ones(3, 2) if hvd.rank() == last else torch.ones(2, 3)
        with pytest.raises(hvd.HorovodInternalError, match="tensor shapes") as caught:
            hvd.allreduce(x, name="set", process_set=one)
        text = str(caught.value)
        assert f"'allreduce.set' of process set {one.process_set_id} (on this rank" in text
        assert "float32 [3, 2]" in text
        assert "float32 [2, 3]" in text
        assert f"rank {last} has float32 [3, 2]" in text
    hvd.remove_process_set(one)


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
def test_ranks_that_differ_get_an_error_on_all_and_go_on() -> None:
    x = torch.ones(3 + (hvd.rank() == 0))
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched allreduce tensor shapes"):
        hvd.allreduce(x, name="differ")
    handle = hvd.allreduce_async(torch.ones(1), name=f"twice.{hvd.rank()}")
    with pytest.raises(ValueError, match="has not ended"):
        hvd.allreduce_async(torch.ones(1), name=f"twice.{hvd.rank()}")
    hvd.barrier()  # otherwise a fast rank could end it before it is submitted again
    for other in range(hvd.size()):
        if other != hvd.rank():
            hvd.allreduce(torch.ones(1), name=f"twice.{other}")
    assert hvd.synchronize(handle).item() == 1


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
def test_an_average_and_a_sum_are_distinguished_by_their_names() -> None:
    mine, others = ("avg", "sum") if hvd.rank() == 0 else ("sum", "avg")
    op = hvd.Average if mine == "avg" else hvd.Sum
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched reduction operation") as caught:
        hvd.allreduce(torch.ones(3), name="which", op=op)
    assert f"has {mine}" in str(caught.value)
    assert f"has {others}" in str(caught.value)


def test_handles_are_numbers_of_any_kind_and_may_be_polled_while_another_thread_waits() -> None:
    x = torch.ones(4)
    handle = hvd.allreduce_async_(x, name=name(), op=hvd.Sum)
    assert hvd.synchronize(np.int64(handle)) is x
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="no such handle"):
        hvd.poll(handle)
    for _ in range(50):
        handle = hvd.allreduce_async_(x, name=name(), op=hvd.Sum)
        waiting = threading.Thread(target=hvd.synchronize, args=(handle,))
        waiting.start()
        while waiting.is_alive():
            with contextlib.suppress(ValueError):  # the handle has been synchronised
                hvd.poll(handle)
        waiting.join()


def test_a_rank_that_joins_first_takes_part_in_what_makes_no_call() -> None:
    """The rank takes the log's entries when all have joined."""
    for turn in range(20):
        if hvd.rank() == turn % hvd.size():
            handles = []
        else:
            handles = [hvd.allreduce_async(torch.ones(0), name=f"empty.{turn}", op=hvd.Sum)]
            hvd.barrier()
        hvd.join()
        for handle in handles:
            hvd.synchronize(handle)


def test_unnamed_operations_match_again_after_a_join() -> None:
    """Ranks that join later have made more unnamed calls than others."""
    for _ in range(hvd.rank()):
        hvd.allreduce(torch.ones(2))
    hvd.join()
    assert (hvd.allreduce(torch.ones(2), op=hvd.Sum) == hvd.size()).all()
    assert len(hvd.allgather(torch.ones(2, 1))) == 2 * hvd.size()


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


class Marked(torch.Tensor):  # type: ignore[misc]
    """A type whose methods may have another meaning."""


def looked_at(make: Any) -> bool:
    """Whether the core has taken such a tensor, and not left it to the Python reader."""
    tensor = make()
    engine = hvd.global_process_set.engine()
    request = engine.submit_tensor(name(), tensor, tensor, "sum", 1.0, 1.0, 0, None, 0)
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
        # the program drops the handle
        hvd.allreduce_async_(torch.ones(1000), name=name(), op=hvd.Sum)
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
