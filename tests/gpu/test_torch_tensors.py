"""Tensors on a GPU in gradred.torch and in the backend of torch.distributed.

The tensors have PyTorch's type, and lie in the simulated driver's memory. No host thread can touch
them, and values that are written to them arrive late.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
hvd = pytest.importorskip("gradred.torch")

from gpu.simulated import Driver  # noqa: E402
from gpu.tensors import OnGpu, in_stream, on_gpu  # noqa: E402
from pytorch.groups import RANK, SIZE, dist, group_of_all  # noqa: E402

import gradred  # noqa: E402

__all__ = ["group_of_all"]  # a fixture of this module
LENGTHS = (1, 7, 1000, 70_001, 1_200_003)  # packed, through the host, from device to device
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@pytest.fixture(scope="module", autouse=True)
def initialised() -> Iterator[None]:
    hvd.init()
    yield
    hvd.barrier()


@pytest.fixture(autouse=True)
def stream(device: Driver) -> Iterator[int]:
    """PyTorch's current stream, for which no other stream waits."""
    made = device.stream()
    with in_stream(device, made):
        yield made
    device.destroy(made)


def ours(length: int, dtype: Any = torch.float32, rank: int = RANK) -> Any:
    """Whole numbers of one rank, whose sums are exact in any order."""
    return ((torch.arange(length) + rank) % 5).to(dtype)


def summed(length: int, dtype: Any = torch.float32) -> Any:
    return torch.stack([ours(length, torch.float64, rank) for rank in range(SIZE)]).sum(0).to(dtype)


def expect(found: Any, values: Any) -> None:
    assert isinstance(found, OnGpu)
    assert found.dtype is values.dtype
    assert torch.equal(found.cpu(), values)


# ---- gradred.torch ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
def test_an_allreduce_comes_after_the_work_of_the_current_stream(length: int, stream: int) -> None:
    x = on_gpu(ours(length), stream)
    expect(hvd.allreduce(x, op=hvd.Sum), summed(length))
    expect(x, ours(length))


@pytest.mark.parametrize("length", LENGTHS)
def test_in_place(length: int, stream: int) -> None:
    x = on_gpu(ours(length), stream)
    assert hvd.allreduce_(x, op=hvd.Sum) is x
    expect(x, summed(length))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("op", ["Sum", "Min", "Max", "Product"])
def test_types_and_operations(op: str, dtype: Any, stream: int) -> None:
    every = torch.stack([ours(999, torch.float64, rank) for rank in range(SIZE)])
    found = {
        "Sum": every.sum(0),
        "Min": every.amin(0),
        "Max": every.amax(0),
        "Product": every.prod(0),
    }[op]
    x = on_gpu(ours(999, dtype), stream)
    expect(hvd.allreduce(x, op=getattr(hvd, op)), found.to(dtype))


@pytest.mark.parametrize("length", [1000, 1_200_003])
def test_factors_before_and_after(length: int, stream: int) -> None:
    x = on_gpu(ours(length), stream)
    found = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    expect(found, summed(length) * 2)
    expect(x, ours(length))
    expect(hvd.allreduce(x, op=hvd.Average), summed(length) / SIZE)


def test_other_dense_layouts(stream: int) -> None:
    values = ours(6 * 5 * 4 * 3).reshape(6, 5, 4, 3).to(memory_format=torch.channels_last)
    found = hvd.allreduce(on_gpu(values, stream), op=hvd.Sum)
    assert torch.equal(found.cpu(), summed(360).reshape(6, 5, 4, 3))
    with pytest.raises(ValueError, match="not dense"):
        hvd.allreduce(on_gpu(values.contiguous(), stream).narrow(1, 0, 3))


def test_many_at_once_in_another_order_on_each_rank(stream: int) -> None:
    lengths = [3 + 997 * number for number in range(40)]
    handles = {}
    for turn in range(len(lengths)):
        number = (turn + 11 * RANK) % len(lengths)
        x = on_gpu(ours(lengths[number]), stream)
        handles[number] = hvd.allreduce_async(x, name=f"gpu {number}", op=hvd.Sum)
    for number, length in enumerate(lengths):
        expect(hvd.synchronize(handles[number]), summed(length))


def test_many_small_ones_are_packed_by_launches(device: Driver, stream: int) -> None:
    lengths = [2 + 61 * number % 911 for number in range(120)]
    for turn in range(2):  # the first turn loads the kernel
        xs = [on_gpu(ours(n), stream) for n in lengths]
        before = device.count("launches"), device.count("copies")
        hvd.grouped_allreduce_(xs, op=hvd.Sum, name=f"small {turn}")
        assert device.count("launches") == before[0] + 2
        assert device.count("copies") == before[1]
        for x, length in zip(xs, lengths, strict=True):
            expect(x, summed(length))


@pytest.mark.parametrize("grouped", [False, True], ids=["allreduce_many", "group"])
def test_arrays_of_one_call_share_a_moment(device: Driver, stream: int, grouped: bool) -> None:
    """One event is recorded in the stream, for any number of arrays."""
    for count in (3, 40):
        xs = [on_gpu(ours(50 + i), stream) for i in range(count)]
        before = device.count("records")
        if grouped:
            hvd.grouped_allreduce_(xs, op=hvd.Sum, name=f"shared moment {count}")
        else:
            gradred.allreduce_many(xs, out=xs)
        assert device.count("records") == before + 1
        for i, x in enumerate(xs):
            expect(x, summed(50 + i))


def test_a_group_of_small_and_large_ones(stream: int) -> None:
    lengths = (5, 300_000, 1, 70_001, 0, 9)
    found = hvd.grouped_allreduce([on_gpu(ours(n), stream) for n in lengths], op=hvd.Sum)
    for one, length in zip(found, lengths, strict=True):
        expect(one, summed(length))


def test_chunks_of_a_large_one(stream: int) -> None:
    """A more urgent operation lets a large one go in chunks."""
    large = on_gpu(ours(6_000_001), stream)
    handles = [hvd.allreduce_async_(large, name="large", op=hvd.Sum, priority=-1)]
    small = [on_gpu(ours(100), stream) for _ in range(8)]
    for number, x in enumerate(small):
        handles.append(hvd.allreduce_async_(x, name=f"small {number}", op=hvd.Sum, priority=1))
    for handle in reversed(handles):
        hvd.synchronize(handle)
    expect(large, summed(6_000_001))
    for x in small:
        expect(x, summed(100))


@pytest.mark.parametrize("length", [3, 400_000])
def test_broadcast(length: int, stream: int) -> None:
    root = SIZE - 1
    x = on_gpu(ours(length), stream)
    expect(hvd.broadcast(x, root), ours(length, rank=root))
    expect(x, ours(length))
    hvd.broadcast_(x, root)
    expect(x, ours(length, rank=root))


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("columns", [3, 90_000])
def test_allgather(columns: int, uneven: bool, stream: int) -> None:
    rows = [rank if uneven else 2 for rank in range(SIZE)]
    parts = [ours(rows[rank] * columns, rank=rank).reshape(-1, columns) for rank in range(SIZE)]
    expect(hvd.allgather(on_gpu(parts[RANK], stream)), torch.cat(parts))


def test_alltoall(stream: int) -> None:
    splits = [1 + (RANK + to) % 3 for to in range(SIZE)]
    x = on_gpu(torch.full((sum(splits), 300), float(RANK)), stream)
    found, received = hvd.alltoall(x, torch.tensor(splits, dtype=torch.int32))
    rows = [1 + (rank + RANK) % 3 for rank in range(SIZE)]
    assert received.tolist() == rows
    expected = [torch.full((n, 300), float(rank)) for rank, n in enumerate(rows)]
    expect(found, torch.cat(expected))


@pytest.mark.parametrize("rows", [2 * SIZE, 2 * SIZE + 1])
@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_reducescatter(op: str, rows: int, factor: float, stream: int) -> None:
    columns = 40_000
    x = on_gpu(ours(rows * columns).reshape(rows, columns), stream)
    found = hvd.reducescatter(x, op=getattr(hvd, op), prescale_factor=factor)
    each, more = divmod(rows, SIZE)
    begin = RANK * each + min(RANK, more)
    whole = factor * summed(rows * columns).reshape(rows, columns)
    part = whole[begin : begin + each + (more > RANK)]
    if op == "Sum":
        expect(found, part)
    else:
        assert torch.allclose(found.cpu(), part / SIZE)


@pytest.mark.skipif(SIZE & (SIZE - 1) != 0, reason="Adasum takes a power of two")
def test_adasum(stream: int) -> None:
    vectors = torch.eye(SIZE, 64)
    found = hvd.allreduce(on_gpu(vectors[RANK], stream), op=hvd.Adasum)
    expect(found, vectors.sum(0))  # orthogonal vectors are added


def test_a_rank_that_has_joined_takes_part_with_zeros(stream: int) -> None:
    if RANK == 0:
        found = [hvd.allreduce(on_gpu(ours(n), stream), name=f"j{n}", op=hvd.Sum) for n in LENGTHS]
        for one, length in zip(found, LENGTHS, strict=True):
            expect(one, ours(length))
    hvd.join()


@pytest.mark.skipif(SIZE == 1, reason="takes two ranks")
def test_ranks_that_differ_in_the_device_get_an_error_and_go_on(stream: int) -> None:
    x = ours(50)
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched CPU/GPU device selection"):
        hvd.allreduce(on_gpu(x, stream) if RANK == 0 else x, name="differs", op=hvd.Sum)
    hvd.barrier()
    expect(hvd.allreduce(on_gpu(x, stream), name="differs", op=hvd.Sum), summed(50))


def test_a_group_on_both_kinds_of_memory_is_refused(stream: int) -> None:
    tensors = [ours(10), on_gpu(ours(10))]
    with pytest.raises(gradred.UsageError, match="some arrays are on a GPU and others in host"):
        hvd.grouped_allreduce(tensors, op=hvd.Sum, prescale_factor=0.5)
    hvd.barrier()


def test_input_and_result_on_different_devices(stream: int) -> None:
    from gradred.torch_tensors import described

    with pytest.raises(gradred.UsageError, match="Pass tensors on one device"):
        described(on_gpu(ours(5)), ours(5), "allreduce")


def test_memory_that_has_been_freed(stream: int) -> None:
    x = on_gpu(ours(5))
    x.memory.free()
    x.memory.address = 0x1000  # an address where nothing is ever mapped
    try:
        with pytest.raises(hvd.HorovodInternalError, match="Pass one that is alive"):
            hvd.allreduce_(x)
    finally:
        x.memory.address = 0
    hvd.barrier()


# ---- torch.distributed --------------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX"])
def test_all_reduce(op: str, length: int, stream: int) -> None:
    x = on_gpu(ours(length), stream)
    dist.all_reduce(x, getattr(dist.ReduceOp, op))
    every = torch.stack([ours(length, rank=rank) for rank in range(SIZE)])
    expect(x, {"SUM": every.sum(0), "AVG": every.mean(0), "MAX": every.amax(0)}[op])


def test_work_that_is_waited_for_later(stream: int) -> None:
    tensors = [on_gpu(ours(n), stream) for n in (70_001, 5, 300_000)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for work, x in zip(reversed(works), reversed(tensors), strict=True):
        assert work.wait()
        expect(x, summed(x.numel()))


def test_tensors_with_holes(stream: int) -> None:
    x = on_gpu(torch.zeros(40, 30), stream)
    part = x.narrow(1, 3, 5)
    part.copy_(ours(200).reshape(40, 5))
    dist.broadcast(part, SIZE - 1)
    expect(part, ours(200, rank=SIZE - 1).reshape(40, 5))
    assert x.cpu().sum() == part.cpu().sum()


@pytest.mark.parametrize("length", [1, 300_001])
def test_all_gather(length: int, stream: int) -> None:
    parts = [ours(length, rank=rank) for rank in range(SIZE)]
    whole = on_gpu(torch.zeros(SIZE * length), stream)
    dist.all_gather_into_tensor(whole, on_gpu(parts[RANK], stream))
    expect(whole, torch.cat(parts))
    found = [on_gpu(torch.zeros(length), stream) for _ in range(SIZE)]
    dist.all_gather(found, on_gpu(parts[RANK], stream))
    for one, part in zip(found, parts, strict=True):
        expect(one, part)
    uneven = [on_gpu(torch.zeros(length + rank), stream) for rank in range(SIZE)]
    dist.all_gather(uneven, on_gpu(ours(length + RANK), stream))
    for rank, one in enumerate(uneven):
        expect(one, ours(length + rank, rank=rank))


@pytest.mark.parametrize("length", [1, 300_001])
def test_reduce_scatter(length: int, stream: int) -> None:
    whole = summed(SIZE * length)
    mine = on_gpu(torch.zeros(length), stream)
    dist.reduce_scatter_tensor(mine, on_gpu(ours(SIZE * length), stream))
    expect(mine, whole[RANK * length :][:length])
    mine = on_gpu(torch.zeros(length), stream)
    parts = [on_gpu(part, stream) for part in ours(SIZE * length).split(length)]
    dist.reduce_scatter(mine, parts)
    expect(mine, whole[RANK * length :][:length])


def test_reduce_gather_scatter(stream: int) -> None:
    root = SIZE - 1
    x = on_gpu(ours(500), stream)
    dist.reduce(x, root)
    expect(x, summed(500) if root == RANK else ours(500))
    x = on_gpu(ours(500), stream)
    found = [on_gpu(torch.zeros(500), stream) for _ in range(SIZE)]
    dist.gather(x, found if root == RANK else None, root)
    if root == RANK:
        for rank, one in enumerate(found):
            expect(one, ours(500, rank=rank))
    parts = [on_gpu(ours(500, rank=rank), stream) for rank in range(SIZE)]
    dist.scatter(x, parts if root == RANK else None, root)
    expect(x, ours(500))


def test_all_to_all(stream: int) -> None:
    found = on_gpu(torch.zeros(SIZE * 30), stream)
    dist.all_to_all_single(found, on_gpu(torch.arange(SIZE * 30.0) + RANK, stream))
    mine = torch.arange(30.0) + 30 * RANK
    expect(found, torch.cat([mine + rank for rank in range(SIZE)]))
    outputs = [on_gpu(torch.zeros(10 + rank), stream) for rank in range(SIZE)]
    inputs = [on_gpu(ours(10 + RANK, rank=to), stream) for to in range(SIZE)]
    dist.all_to_all(outputs, inputs)
    for rank, one in enumerate(outputs):
        expect(one, ours(10 + rank, rank=RANK))


def test_results_are_there_however_late_copies_are(device: Driver, stream: int) -> None:
    device.set("most_delay", 20_000_000)
    for turn in range(4):
        found = on_gpu(torch.zeros(SIZE * 30), stream)
        dist.all_to_all_single(found, on_gpu(ours(SIZE * 30), stream))
        expect(found, torch.cat([ours(SIZE * 30, rank=r)[30 * RANK :][:30] for r in range(SIZE)]))
        small = [on_gpu(ours(5 + turn), stream) for _ in range(3)]
        for one in hvd.grouped_allreduce(small, op=hvd.Sum):
            expect(one, summed(5 + turn))


@pytest.mark.skipif(SIZE == 1, reason="takes two ranks")
def test_messages(stream: int) -> None:
    x = on_gpu(ours(70_001), stream)
    found = on_gpu(torch.zeros(70_001), stream)
    to, source = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    batch = [dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, found, source)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    expect(found, ours(70_001, rank=source))


def test_several_as_one(stream: int) -> None:
    tensors = [on_gpu(ours(n), stream) for n in (3, 400_000, 17)]
    dist.all_reduce_coalesced(tensors)
    for x in tensors:
        expect(x, summed(x.numel()))


def test_the_group_serves_both_kinds_of_memory() -> None:
    group = dist.group.WORLD
    assert group._get_backend(torch.device("cuda")) is (group.backend or group)
    x = ours(9)
    dist.all_reduce(x)
    assert torch.equal(x, summed(9))


def test_streams_are_given_back(device: Driver, stream: int) -> None:
    """Driver resources of operations are reused."""

    def run() -> None:
        handles = [
            hvd.allreduce_async(on_gpu(ours(n), stream), name=f"again {n}", op=hvd.Sum)
            for n in range(1, 30)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    run()
    streams, events = device.count("streams"), device.count("events")
    for _ in range(5):
        run()
    most = 30  # at a time; the first run may have had fewer
    assert device.count("streams") <= streams + most
    assert device.count("events") <= events + most


# ---- waiting in a stream ------------------------------------------------------------------------


@contextlib.contextmanager
def held_back(device: Driver, stream: int) -> Iterator[Callable[[], None]]:
    """Keep the stream from going on until the function is called."""
    word = ctypes.c_void_p()
    device.must("cuMemHostAlloc", ctypes.byref(word), ctypes.c_size_t(4), 0)
    count = ctypes.c_uint32.from_address(word.value or 0)
    count.value = 0
    device.must("cuStreamWaitValue32_v2", ctypes.c_void_p(stream), word, ctypes.c_uint32(1), 0)

    def go_on() -> None:
        count.value = 1

    try:
        yield go_on
    finally:
        go_on()
        device.must("cuStreamSynchronize", ctypes.c_void_p(stream))
        device.must("cuMemFreeHost", word)


def collective(kind: str, length: int, stream: int) -> tuple[Callable[[], Any], Any, Any]:
    """An asynchronous operation on tensors of its own, its result and the values expected."""
    if kind == "all_reduce":
        x = on_gpu(ours(length), stream)
        return lambda: dist.all_reduce(x, async_op=True), x, summed(length)
    if kind == "all_gather":
        whole, x = on_gpu(torch.zeros(SIZE * length), stream), on_gpu(ours(length), stream)
        every = torch.cat([ours(length, rank=rank) for rank in range(SIZE)])
        return lambda: dist.all_gather_into_tensor(whole, x, async_op=True), whole, every
    mine, x = on_gpu(torch.zeros(length), stream), on_gpu(ours(SIZE * length), stream)
    expected = summed(SIZE * length)[RANK * length :][:length]
    return lambda: dist.reduce_scatter_tensor(mine, x, async_op=True), mine, expected


def make_known(start: Callable[[], Any]) -> None:
    """Start the operation three times: gradred exports allocations that it has seen twice, if no
    stream waits for peers."""
    for _ in range(3):
        assert start().wait(datetime.timedelta(seconds=30))


@pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_wait_makes_the_current_stream_wait(kind: str, device: Driver, stream: int) -> None:
    start, result, expected = collective(kind, 300_000, stream)
    make_known(start)
    copy = on_gpu(torch.zeros(result.numel()))
    with held_back(device, stream) as go_on:
        work = start()
        assert work.wait()
        assert not work.is_completed()
        device.copy(copy.memory.address, result.memory.address, result.memory.nbytes, stream)
        go_on()
    assert work.wait(datetime.timedelta(seconds=30))
    assert work.is_completed()
    if kind == "all_reduce":  # it was reduced each time
        return expect(copy, expected * SIZE**3)
    return expect(copy, expected)


@pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
def test_streams_wait_for_several_operations(device: Driver, stream: int) -> None:
    kinds = ["all_gather", "reduce_scatter", "all_gather", "all_reduce", "reduce_scatter"]
    made = [collective(kind, 300_000 + 1000 * i, stream) for i, kind in enumerate(kinds)]
    for start, _, _ in made:
        make_known(start)
    small = on_gpu(ours(5), stream)
    with held_back(device, stream) as go_on:
        works = [start() for start, _, _ in made]
        assert all(work.wait() for work in works)
        assert not any(work.is_completed() for work in works)
        last = dist.all_reduce(small, async_op=True)  # through host memory, behind the others
        go_on()
        assert last.wait()
    expect(small, summed(5))
    for (_, result, expected), kind in zip(made, kinds, strict=True):
        expect(result, expected * (SIZE**3 if kind == "all_reduce" else 1))
    assert all(work.is_completed() for work in works)


@pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
def test_memory_is_freed_while_streams_wait(device: Driver, stream: int) -> None:
    """As by an allocator that gives memory back: the driver waits for the device, all others wait
    for the driver."""
    made = [collective("all_reduce", 300_000 + 1000 * i, stream) for i in range(3)]
    for start, _, _ in made:
        make_known(start)
    other = on_gpu(ours(1000))
    with held_back(device, stream) as go_on:
        works = [start() for start, _, _ in made]
        for work in works:
            work.wait()
        threading.Timer(0.05, go_on).start()
        device.set("synchronises", 1)
        other.memory.free()
        device.set("synchronises", 0)
    for work, (_, result, expected) in zip(works, made, strict=True):
        assert work.wait(datetime.timedelta(seconds=30))
        expect(result, expected * SIZE**3)
