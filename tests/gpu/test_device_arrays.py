"""Arrays in a device's memory, in every call, on the simulated driver with any number of ranks."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gpu.simulated import MANAGED, POOL, DeviceArray, Driver, the_driver
from mpi.knobs import use
from mpi4py import MPI

import gradred
from gradred import DeviceError, UsageError
from gradred.element_types import ELEMENT_TYPES, ITEMSIZES, numpy_dtype

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
TOTAL = SIZE * (SIZE + 1) // 2
NEVER_PINNED = iter([3_000_000, 7_000_000])  # lengths for which no pinned host memory exists yet
SHORT = 16_384  # elements of float32 from which data pass from device to device
COUNTS = [0, 1, 13, 1009, 70_001, 150_001]


KNOBS: dict[str, dict[str, Any]] = {
    "devices": {"ipc_bytes": 200_000},  # calls take many pieces
    "shared memory": {"ipc_bytes": "none"},
    "messages": {"shm": False},
}


@pytest.fixture(scope="module", params=KNOBS)
def comm(request: pytest.FixtureRequest) -> Iterator[gradred.Comm]:
    """A communicator after its first call."""
    made = gradred.Comm(MPI.COMM_WORLD.Dup())
    use(**KNOBS[request.param])
    made.Allreduce(MPI.IN_PLACE, np.zeros(1))
    use()
    yield made
    made.Free()


def values(count: int, dtype: str = "float32", rank: int = RANK) -> npt.NDArray[Any]:
    """Small whole numbers, whose sums are exact in any order."""
    return ((np.arange(count) + rank) % 5).astype(numpy_dtype(dtype))


def total(count: int, dtype: str = "float32") -> npt.NDArray[Any]:
    return np.sum([values(count, "int64", rank) for rank in range(SIZE)], axis=0).astype(
        numpy_dtype(dtype)
    )


def host(x: Any) -> npt.NDArray[Any]:
    return x.get() if isinstance(x, DeviceArray) else np.asarray(x)


Make = Callable[[npt.NDArray[Any]], Any]


def on_device(x: npt.NDArray[Any]) -> DeviceArray:
    return DeviceArray(the_driver(), x)


PLACES: dict[str, tuple[Make, Make]] = {
    "device": (on_device, on_device),
    "input": (on_device, np.array),
    "result": (np.array, on_device),
    "odd ranks": (np.array, np.array) if RANK % 2 == 0 else (on_device, on_device),
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("place", PLACES)
def test_every_kind_of_call_on_buffers(
    device: Driver, comm: gradred.Comm, place: str, count: int, request: pytest.FixtureRequest
) -> None:
    if "devices" in request.node.callspec.id and count < SHORT:
        pytest.skip("short calls are those of shared memory")
    put, room = PLACES[place]
    x, y = put(values(count)), room(np.full(count, 99, "float32"))
    calls: list[Callable[[], Any]] = [
        lambda: comm.Allreduce(x, y),
        lambda: comm.Allreduce([x, MPI.FLOAT], [y, count, MPI.FLOAT]),
        lambda: comm.Iallreduce(x, y).Wait(),
        lambda: MPI.Request.Waitall([comm.Iallreduce(x, y)]),
    ]
    p = comm.Allreduce_init(x, y)
    calls += [p, lambda: (p.Start(), p.Wait())]
    for call in calls:
        call()
        np.testing.assert_array_equal(host(y), total(count))
    p.Free()
    np.testing.assert_array_equal(host(x), values(count))
    both = room(values(count))
    comm.Allreduce(MPI.IN_PLACE, both)
    np.testing.assert_array_equal(host(both), total(count))
    blocks, block = put(values(count * SIZE)), room(np.zeros(count, "float32"))
    comm.Reduce_scatter_block(blocks, block)
    np.testing.assert_array_equal(host(block), total(count * SIZE)[RANK * count :][:count])
    gathered = room(np.zeros(count * SIZE, "float32"))
    comm.Allgather(x, gathered)
    everyone = np.concatenate([values(count, rank=rank) for rank in range(SIZE)])
    np.testing.assert_array_equal(host(gathered), everyone)
    sent = room(values(count, rank=7) if RANK == SIZE - 1 else np.zeros(count, "float32"))
    comm.Bcast(sent, root=SIZE - 1)
    np.testing.assert_array_equal(host(sent), values(count, rank=7))


def test_persistent_calls_start_in_any_order(device: Driver, comm: gradred.Comm) -> None:
    counts = (5, 5, 40_000, 5)
    arrays = [
        (on_device(k * values(n)), on_device(np.zeros(n, "float32"))) for k, n in enumerate(counts)
    ]
    requests = [comm.Allreduce_init(x, y) for x, y in arrays]
    for turn in range(3):
        order = requests if (RANK + turn) % 2 else requests[::-1]
        for request in order:
            request.Start()
        gradred.Request.Waitall(requests)
        for k, (n, (_, y)) in enumerate(zip(counts, arrays, strict=True)):
            np.testing.assert_array_equal(y.get(), k * total(n))
        for request in requests:
            request()
    for request in requests:
        request.Free()


@pytest.mark.parametrize("dtype", [name for name in ITEMSIZES if name != "bool"])
def test_every_type(device: Driver, comm: gradred.Comm, dtype: str) -> None:
    if not ELEMENT_TYPES[dtype].is_numpys:
        pytest.skip("the CUDA Array Interface has no name for it")
    given = values(1003, dtype)
    y = gradred.allreduce(on_device(given), comm=comm)
    assert isinstance(y, DeviceArray)
    np.testing.assert_array_equal(y.get(), total(1003, dtype))


@pytest.mark.parametrize("op", ["sum", "max", "prod", "avg", gradred.premul(0.5)])
def test_operations_are_those_of_host_arrays(device: Driver, comm: gradred.Comm, op: Any) -> None:
    x = values(5000, "float64")
    expected = gradred.allreduce(x, op, comm=comm)
    found = gradred.allreduce(on_device(x), op, comm=comm)
    assert isinstance(found, DeviceArray)
    np.testing.assert_array_equal(found.get(), expected)
    x_in_place = on_device(x)
    assert gradred.iallreduce(x_in_place, op, out=x_in_place, comm=comm).wait() is x_in_place
    np.testing.assert_array_equal(x_in_place.get(), expected)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int16"])
def test_means_of_integers_are_exact(device: Driver, comm: gradred.Comm, dtype: str) -> None:
    x = np.full(5000, np.iinfo(dtype).max - 1, dtype)
    assert (gradred.allreduce(on_device(x), "avg", comm=comm).get() == x).all()
    in_place = on_device(x)
    gradred.iallreduce(in_place, "avg", out=in_place, comm=comm).wait()
    assert (in_place.get() == x).all()
    block = gradred.reduce_scatter_block(on_device(x[: 4 * SIZE]), "avg", comm=comm)
    assert (block.get() == x[:4]).all()
    if SIZE == 1:  # no plan is used
        return
    with pytest.raises(gradred.UsageError, match="means of integers are computed in host memory"):
        gradred.allreduce(on_device(x), "avg", comm=comm, plan="nccl")
    persistent = comm.Allreduce_init(on_device(x), y := on_device(np.zeros_like(x)), "avg")
    persistent()
    persistent.Free()
    assert (y.get() == x).all()


def test_integers_times_a_whole_number_are_exact(device: Driver, comm: gradred.Comm) -> None:
    x = np.array([2**53 + 1, -(2**55) - 1, 2**60 + 1, 5])
    expected = gradred.allreduce(x, gradred.premul(3), comm=comm)
    np.testing.assert_array_equal(expected, x * 3 * SIZE)
    found = gradred.allreduce(on_device(x), gradred.premul(3), comm=comm)
    np.testing.assert_array_equal(found.get(), expected)


def test_array_calls_give_arrays_of_the_device(device: Driver, comm: gradred.Comm) -> None:
    x = values(12 * SIZE).reshape(SIZE, 12)
    block = gradred.reduce_scatter_block(on_device(x), comm=comm)
    np.testing.assert_array_equal(block.get(), total(12 * SIZE).reshape(SIZE, 12)[RANK : RANK + 1])
    gathered = gradred.allgather(on_device(x), comm=comm)
    assert (gathered.shape, gathered.get()[:SIZE].tolist()) == (
        (SIZE * SIZE, 12),
        values(12 * SIZE, rank=0).reshape(SIZE, 12).tolist(),
    )
    sent = gradred.bcast(on_device(x), root=0, comm=comm)
    np.testing.assert_array_equal(sent.get().ravel(), values(12 * SIZE, rank=0))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_sums_copy_to_the_host(device: Driver, comm: gradred.Comm, dtype: str) -> None:
    x = np.array([1e30, 1.0, -1e30] * 700, dtype)
    assert gradred.exact_sum(on_device(x), comm=comm) == 700 * SIZE


@pytest.mark.parametrize("count", [1009, 700_001])
@pytest.mark.parametrize("place", PLACES)
def test_scans_gathers_and_scatters(
    device: Driver, comm: gradred.Comm, place: str, count: int
) -> None:
    """Data of the longer ones go piece by piece."""
    device.set("most_delay", 1_000)
    put, room = PLACES[place]
    mine, nothing = values(count), np.zeros(count, "float32")
    everyone = [values(count, rank=rank) for rank in range(SIZE)]
    for exclusive, last in ((False, RANK + 1), (True, RANK)):
        wanted = np.sum([nothing, *everyone[:last]], axis=0)
        out = gradred.scan(put(mine), exclusive=exclusive, out=room(nothing + 99), comm=comm)
        np.testing.assert_array_equal(host(out), wanted)
        both = room(mine)
        gradred.iscan(both, exclusive=exclusive, out=both, comm=comm).wait()
        np.testing.assert_array_equal(host(both), wanted)
    root, whole = SIZE - 1, np.concatenate(everyone)
    gathered = gradred.gather(put(mine), root, out=room(np.zeros_like(whole)), comm=comm)
    assert (gathered is not None) == (root == RANK)
    if gathered is not None:
        np.testing.assert_array_equal(host(gathered), whole)
    block = room(nothing + 99)
    gradred.iscatter(put(whole if root == RANK else mine), root, out=block, comm=comm).wait()
    np.testing.assert_array_equal(host(block), mine)


def test_lists_of_arrays_of_both_kinds(device: Driver, comm: gradred.Comm) -> None:
    sizes = [3, 100_000, 0, 500, 2000]
    given = [values(n) for n in sizes]
    xs = [on_device(x) if (i + RANK) % 2 else x.copy() for i, x in enumerate(given)]
    for results in (
        gradred.allreduce_many(xs, comm=comm),
        gradred.iallreduce_many(xs, comm=comm).wait(),
        gradred.allreduce_many(xs, out=xs, comm=comm),
    ):
        for n, x, y in zip(sizes, xs, results, strict=True):
            assert type(y) is type(x)
            np.testing.assert_array_equal(host(y), total(n))


def test_small_arrays_travel_as_one_vector_by_a_launch_each_way(
    device: Driver, comm: gradred.Comm
) -> None:
    sizes = [number * 37 % 997 + 1 for number in range(100)]
    for _ in range(2):  # the first turn loads the kernel
        xs = [on_device(values(n)) for n in sizes]
        before = device.count("launches"), device.count("copies")
        gradred.allreduce_many(xs, out=xs, comm=comm)
        assert device.count("launches") == before[0] + 2
        assert device.count("copies") == before[1]
        for n, x in zip(sizes, xs, strict=True):
            np.testing.assert_array_equal(host(x), total(n))


@pytest.mark.parametrize("how", ["cuMemAlloc_v2", POOL, MANAGED])
def test_memory_of_every_kind(device: Driver, comm: gradred.Comm, how: str) -> None:
    x = DeviceArray(device, values(4000), how=how)
    np.testing.assert_array_equal(gradred.allreduce(x, comm=comm).get(), total(4000))


def test_parts_of_an_array(device: Driver, comm: gradred.Comm) -> None:
    x = on_device(values(1000))
    comm.Allreduce(MPI.IN_PLACE, x.part(13, 700))
    expected = values(1000)
    expected[13:700] = total(1000)[13:700]
    np.testing.assert_array_equal(x.get(), expected)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("count", [3000, 70_001])
def test_work_in_the_arrays_own_stream_comes_first(
    device: Driver, comm: gradred.Comm, started: bool, count: int
) -> None:
    stream = device.stream()
    device.set("least_delay", 2_000_000)  # work that is given to a stream begins 2 ms later
    x = DeviceArray(device, values(count), stream=stream)
    y = DeviceArray(device, np.full(count, 99, "float32"), stream=stream)
    device.set("least_delay", 0)
    if started:
        gradred.iallreduce(x, out=y, comm=comm).wait()
    else:
        gradred.allreduce(x, out=y, comm=comm)
    np.testing.assert_array_equal(y.get(), total(count))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("op", ["sum", "avg", gradred.premul(2.0)])
def test_long_calls_whose_pieces_overlap(
    device: Driver, comm: gradred.Comm, place: str, op: Any
) -> None:
    """No two elements have the same value, so an early copy of the result is detected."""
    device.set("most_delay", 1_000)
    count = 2_500_003
    mine = (np.arange(count) % 4093 + RANK).astype("float32")
    put, room = PLACES[place]
    expected = mine * SIZE + np.float32(TOTAL - SIZE - RANK * SIZE)
    if op == "avg":
        expected /= SIZE
    elif op != "sum":
        expected *= 2
    for _ in range(2 if op == "sum" else 1):
        x, y = put(mine), room(np.zeros(count, "float32"))
        gradred.allreduce(x, op, out=y, comm=comm)
        np.testing.assert_array_equal(host(y), expected)
        gradred.iallreduce(x, op, out=x, comm=comm).wait()
        np.testing.assert_array_equal(host(x), expected)
    sent = room(mine + 1 if RANK == 0 else np.zeros(count, "float32"))
    gradred.bcast(sent, root=0, out=sent, comm=comm)
    np.testing.assert_array_equal(host(sent), mine - RANK + 1)


@pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
@pytest.mark.parametrize("plan", ["ring", "recursive_doubling", "hierarchical"])
def test_calls_over_messages_begin_and_end_in_pieces(device: Driver, plan: str) -> None:
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    use(shm=False, slices=4)
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    use()
    mine = (np.arange(2_500_003) % 4093 + RANK).astype("float32")
    x, y = on_device(mine), on_device(np.zeros_like(mine))
    for call in (
        lambda: gradred.allreduce(x, out=y, comm=comm, plan=plan),
        lambda: gradred.iallreduce(x, out=y, comm=comm, plan=plan).wait(),
    ):
        before = device.count("copies")
        call()
        inputs, results = 10, 4  # pieces of 1 MiB of the input, and slices of the result
        assert device.count("copies") - before == inputs + results
        expected = mine * SIZE + np.float32(TOTAL - SIZE - RANK * SIZE)
        np.testing.assert_array_equal(y.get(), expected)
    comm.Free()


def test_several_in_flight_end_in_any_order(device: Driver, comm: gradred.Comm) -> None:
    sizes = [1, 70_000, 33, 5000, 0, 200_001]
    made: list[Any] = []
    for i, n in enumerate(sizes):  # some on the host, in one order on all ranks
        x = values(n) if i % 3 == 2 else on_device(values(n))
        made.append(gradred.iallreduce(x, comm=comm))
    for i in np.random.default_rng(RANK).permutation(len(sizes)):
        np.testing.assert_array_equal(host(made[i].wait()), total(sizes[i]))


def test_memory_that_is_freed_and_given_again_at_the_same_address(
    device: Driver, comm: gradred.Comm
) -> None:
    for turn in range(20):
        x = on_device(values(100 + turn))
        np.testing.assert_array_equal(gradred.allreduce(x, comm=comm).get(), total(100 + turn))
        x.free()


def test_nothing_of_the_device_is_left(device: Driver, comm: gradred.Comm) -> None:
    x = on_device(values(50_000))
    for _ in range(3):
        gradred.allreduce(x, comm=comm)
    gc.collect()
    before = [device.count(name) for name in ("bytes", "streams", "events", "pinned")]
    for _ in range(50):
        gradred.allreduce(x, comm=comm)
    gc.collect()
    assert [device.count(name) for name in ("bytes", "streams", "events", "pinned")] == before


# ---- errors -------------------------------------------------------------------------------------


def test_rank_whose_device_has_no_memory_tells_its_peers(
    device: Driver, comm: gradred.Comm, request: pytest.FixtureRequest
) -> None:
    if "devices" in request.node.callspec.id:
        pytest.skip("it needs no host memory")
    count = next(NEVER_PINNED)
    x = on_device(values(count))
    last = RANK == SIZE - 1
    if last:
        device.fail("cuMemHostAlloc", 2)
    try:
        with pytest.raises(DeviceError if last else UsageError, match="OUT_OF_MEMORY"):
            comm.Allreduce(MPI.IN_PLACE, x)
    finally:
        device.fail("cuMemHostAlloc", 0)
    comm.Allreduce(MPI.IN_PLACE, x)
    np.testing.assert_array_equal(x.get(), total(count))


@pytest.mark.parametrize("op", [MPI.MINLOC, MPI.Op.Create(lambda a, b, t: None)])
def test_what_the_mpi_carries_out_gets_no_memory_of_a_device(
    device: Driver, comm: gradred.Comm, op: MPI.Op
) -> None:
    x = on_device(values(4))
    with pytest.raises(DeviceError, match="given host memory alone"):
        comm.Allreduce(MPI.IN_PLACE, x, op)
    with pytest.raises(DeviceError, match="given host memory alone"):
        comm.Allreduce(x, np.zeros(4, "float32"), op)
    gaps = MPI.FLOAT.Create_vector(2, 1, 2).Commit()
    with pytest.raises(DeviceError, match="given host memory alone"):
        comm.Bcast([x, 1, gaps], root=0)
    gaps.Free()
    np.testing.assert_array_equal(gradred.allreduce(x, comm=comm).get(), total(4))


def test_freed_array_is_an_error_on_every_rank(device: Driver, comm: gradred.Comm) -> None:
    x = on_device(values(5000))
    if RANK == 0:
        device.must("cuMemFree_v2", ctypes.c_uint64(x.address))
    try:
        with pytest.raises(DeviceError if RANK == 0 else UsageError, match="no memory of this"):
            comm.Allreduce(MPI.IN_PLACE, x)
    finally:
        if RANK == 0:
            x.address = 0
    assert gradred.allreduce(np.ones(1), comm=comm)[0] == SIZE


def test_ranks_that_disagree_all_get_an_error(device: Driver, comm: gradred.Comm) -> None:
    if SIZE == 1:
        pytest.skip("one rank agrees with itself")
    x = on_device(values(100 + (RANK == 0)))
    with pytest.raises(UsageError, match="100"):
        comm.Allreduce(MPI.IN_PLACE, x)
    np.testing.assert_array_equal(
        gradred.allreduce(on_device(values(9)), comm=comm).get(), total(9)
    )


CALLS: list[Callable[[gradred.Comm, DeviceArray], Any]] = [
    lambda comm, x: comm.Allreduce(MPI.IN_PLACE, x),
    lambda comm, x: comm.Iallreduce(MPI.IN_PLACE, x).Wait(),
    lambda comm, x: gradred.allreduce_many([x, x.part(0, 0)], out=[x, x.part(0, 0)], comm=comm),
]


@pytest.mark.parametrize("function", ["cuEventRecord", "cuStreamWaitEvent", "cuMemcpyAsync"])
@pytest.mark.parametrize("call", CALLS)
def test_device_that_fails_before_a_call_fails_it_on_every_rank(
    device: Driver,
    comm: gradred.Comm,
    call: Callable[[gradred.Comm, DeviceArray], Any],
    function: str,
) -> None:
    x = DeviceArray(device, values(700), stream=device.stream())
    x.get()
    first = RANK == 0
    if first:
        device.fail(function, 999)
    try:
        with pytest.raises(DeviceError if first else UsageError, match=function):
            call(comm, x)
    finally:
        device.fail(function, 0)
    call(comm, x)
    np.testing.assert_array_equal(x.get(), total(700))


def test_array_that_is_longer_than_its_memory_is_refused(
    device: Driver, comm: gradred.Comm
) -> None:
    x = on_device(values(1024))
    with pytest.raises(DeviceError, match="that ends before it"):
        comm.Allreduce(MPI.IN_PLACE, x.part(0, 1 << 28))
