"""Calls in the order of a program's streams, on the simulated driver with any number of ranks."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gpu.simulated import DeviceArray, Driver, the_driver
from mpi.knobs import use
from mpi4py import MPI

import gradred
from gradred import UsageError
from gradred.streams import handle_of

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
TOTAL = SIZE * (SIZE + 1) // 2
COUNTS = [1, 1009, 70_001, 700_001]
"""The last count goes piece by piece."""


@pytest.fixture(scope="module", params=["shared memory", "messages"])
def comm(request: pytest.FixtureRequest) -> Iterator[gradred.Comm]:
    """A communicator after its first call."""
    made = gradred.Comm(MPI.COMM_WORLD.Dup())
    use(shm=request.param == "shared memory")
    made.Allreduce(MPI.IN_PLACE, np.zeros(1))
    use()
    yield made
    made.Free()


@pytest.fixture
def stream(device: Driver) -> Iterator[int]:
    made = device.stream()
    yield made
    device.destroy(made)


class Late:
    """An array whose values arrive late in a stream, and are overwritten soon after."""

    def __init__(self, values: npt.NDArray[Any], stream: int) -> None:
        self.driver, self.stream, self.values = the_driver(), stream, values
        self.array = DeviceArray(self.driver, np.full_like(values, 77))
        self.rubbish = np.full_like(values, 99)
        self.driver.set("least_delay", 10_000_000)
        self._write(values)
        self.driver.set("least_delay", 0)
        self.driver.set("most_delay", 50_000)

    def _write(self, values: npt.NDArray[Any]) -> None:
        nbytes = values.nbytes
        self.driver.copy(self.array.address, values.ctypes.data, nbytes, self.stream)

    def spoil(self) -> None:
        self._write(self.rubbish)


def read(array: DeviceArray, stream: int) -> npt.NDArray[Any]:
    """The values that work in the stream reads; they have not arrived when this returns."""
    found = np.zeros(array.shape, array.dtype)
    the_driver().copy(found.ctypes.data, array.address, array.nbytes, stream)
    return found


def finish(stream: int) -> None:
    the_driver().must("cuStreamSynchronize", ctypes.c_void_p(stream))


def ramp(count: int) -> npt.NDArray[Any]:
    return (np.arange(count) % 7).astype("float32")


OPS: dict[Any, float] = {
    "sum": TOTAL,
    "max": SIZE,
    "avg": TOTAL / SIZE,
    gradred.premul(2): 2 * TOTAL,
}


@pytest.mark.parametrize("op", OPS, ids=str)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("in_place", [False, True])
def test_call_comes_between_what_is_before_and_after(
    comm: gradred.Comm, stream: int, op: Any, count: int, in_place: bool
) -> None:
    x = Late(ramp(count) * (RANK + 1), stream)
    y = gradred.allreduce(x.array, op, out=x.array if in_place else None, comm=comm, stream=stream)
    assert isinstance(y, DeviceArray)
    found = read(y, stream)
    x.spoil()
    finish(stream)
    np.testing.assert_allclose(found, ramp(count) * OPS[op], rtol=1e-6)


def test_means_of_integers_come_in_order(comm: gradred.Comm, stream: int) -> None:
    given = np.array([2**60 + 1, -(2**60) - 1, 2**63 - 1])
    for _ in range(3):
        x = Late(given, stream)
        y = gradred.allreduce(x.array, "avg", comm=comm, stream=stream)
        again = gradred.allreduce(y, "avg", comm=comm, stream=stream)
        found = read(again, stream)
        x.spoil()
        finish(stream)
        np.testing.assert_array_equal(found, given)


def test_many_calls_on_several_streams(comm: gradred.Comm, device: Driver) -> None:
    streams = [device.stream() for _ in range(3)]
    given = [Late(ramp(1000 + i) * (RANK + 1), streams[i % 3]) for i in range(30)]
    ended = [gradred.allreduce(x.array, out=x.array, comm=comm, stream=x.stream) for x in given]
    found = [read(y, x.stream) for x, y in zip(given, ended, strict=True)]
    for one in streams:
        finish(one)
    for i, each in enumerate(found):
        np.testing.assert_array_equal(each, ramp(1000 + i) * TOTAL)


def test_call_returns_before_the_peers_have_come(comm: gradred.Comm, stream: int) -> None:
    """Also after calls without a stream whose requests the program still holds."""
    gradred.allreduce(DeviceArray(the_driver(), np.ones(1)), comm=comm, stream=stream)
    x, y = (DeviceArray(the_driver(), ramp(70_001)) for _ in range(2))
    kept = [gradred.iallreduce(x, comm=comm), comm.Iallreduce(x, y)]
    kept[0].wait()
    kept[1].Wait()
    x = Late(ramp(100), stream)
    if RANK != 0:
        MPI.COMM_WORLD.recv(source=0)
    y = gradred.allreduce(x.array, comm=comm, stream=stream)
    for peer in range(1, SIZE if RANK == 0 else 0):
        MPI.COMM_WORLD.send("the call has returned", peer)
    found = read(y, stream)
    finish(stream)
    np.testing.assert_array_equal(found, ramp(100) * SIZE)


@pytest.mark.parametrize("count", COUNTS)
def test_request_that_streams_and_the_host_wait_for(
    comm: gradred.Comm, device: Driver, count: int
) -> None:
    first, second = device.stream(), device.stream()
    x = Late(ramp(count) * (RANK + 1), first)
    request = gradred.iallreduce(x.array, comm=comm, stream=first)
    y = request.wait_stream(SimpleNamespace(ptr=second))
    found = read(y, second)
    assert request.wait() is y
    assert request.done()
    finish(second)
    np.testing.assert_array_equal(found, ramp(count) * TOTAL)
    np.testing.assert_array_equal(y.get(), ramp(count) * TOTAL)


def test_mpis_own_names(comm: gradred.Comm, stream: int) -> None:
    x, y = Late(ramp(500), stream), DeviceArray(the_driver(), ramp(500))
    comm.Allreduce(x.array, y, MPI.SUM, stream=stream)
    gradred.Allreduce(MPI.IN_PLACE, y, comm=comm, stream=stream)
    z = DeviceArray(the_driver(), ramp(500))
    comm.Scan(x.array, z, stream=stream)
    prefix = read(z, stream)
    request = comm.Iallreduce(MPI.IN_PLACE, y, op=MPI.SUM, stream=stream)
    request.wait_stream(stream)
    found = read(y, stream)
    finish(stream)
    request.Wait()
    request.wait_stream(stream)
    np.testing.assert_array_equal(found, ramp(500) * SIZE**3)
    np.testing.assert_array_equal(prefix, ramp(500) * (RANK + 1))


def test_other_collectives(comm: gradred.Comm, stream: int) -> None:
    whole, block = ramp(SIZE * 300), ramp(300) + RANK
    root = SIZE - 1
    x, z = Late(whole * (RANK + 1), stream), Late(block, stream)
    b, c = Late(block, stream), Late(block, stream)
    results = [
        gradred.reduce_scatter_block(x.array, comm=comm, stream=stream),
        gradred.allgather(z.array, comm=comm, stream=stream),
        gradred.bcast(b.array, root, out=b.array, comm=comm, stream=stream),
        gradred.bcast(c.array, root, comm=comm, stream=stream),
    ]
    found = [read(y, stream) for y in results]
    finish(stream)
    np.testing.assert_array_equal(found[0], whole[RANK * 300 : (RANK + 1) * 300] * TOTAL)
    np.testing.assert_array_equal(
        found[1], np.concatenate([ramp(300) + rank for rank in range(SIZE)])
    )
    np.testing.assert_array_equal(found[2], ramp(300) + root)
    np.testing.assert_array_equal(found[3], ramp(300) + root)


@pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
@pytest.mark.parametrize("kind", ["bcast", "exscan"])
def test_input_of_a_rank_without_a_result_is_read_before_later_work_of_the_stream(
    comm: gradred.Comm, device: Driver, stream: int, kind: str
) -> None:
    """The root of a broadcast, and rank 0 of an exclusive scan."""
    x = Late(ramp(1009) + RANK, stream)
    device.set("least_delay", 20_000_000)  # of the call's copies
    if kind == "bcast":
        y = gradred.bcast(x.array, 0, out=x.array, comm=comm, stream=stream)
        expected = ramp(1009)
    else:
        y = gradred.scan(x.array, exclusive=True, comm=comm, stream=stream)
        expected = RANK * ramp(1009) + sum(range(RANK))
    device.set("least_delay", 0)
    assert isinstance(y, DeviceArray)
    found = read(y, stream)
    x.spoil()
    finish(stream)
    np.testing.assert_array_equal(found, expected)


def test_several_arrays(comm: gradred.Comm, stream: int) -> None:
    given = [Late(ramp(count) * (RANK + 1), stream) for count in (3, 800_000, 5)]
    y = gradred.allreduce_many([x.array for x in given], comm=comm, stream=stream)
    z = gradred.iallreduce_many(y, comm=comm, stream=stream).wait_stream(stream)
    found = [read(each, stream) for each in z]
    finish(stream)
    for x, each in zip(given, found, strict=True):
        np.testing.assert_array_equal(each, ramp(len(x.values)) * TOTAL * SIZE)


@pytest.mark.parametrize("count", COUNTS)
def test_ranks_with_arrays_in_host_memory(comm: gradred.Comm, stream: int, count: int) -> None:
    values = ramp(count) * (RANK + 1)
    if RANK % 2 == 0:
        x = Late(values, stream)
        y = gradred.iallreduce(x.array, comm=comm, stream=stream).wait_stream(stream)
        found = read(y, stream)
        finish(stream)
    else:
        found = gradred.iallreduce(values, comm=comm).wait()
    np.testing.assert_array_equal(found, ramp(count) * TOTAL)


def test_arrays_of_the_host_come_after_the_stream_as_well(comm: gradred.Comm, stream: int) -> None:
    driver = the_driver()
    there = DeviceArray(driver, ramp(50))
    x = np.zeros(50, "float32")
    driver.set("least_delay", 10_000_000)
    driver.copy(x.ctypes.data, there.address, there.nbytes, stream)
    driver.set("least_delay", 0)
    y = gradred.allreduce(x, comm=comm, stream=stream)
    np.testing.assert_array_equal(y, ramp(50) * SIZE)


def test_driver_that_waits_for_the_device_while_a_call_is_in_flight(
    comm: gradred.Comm, device: Driver, stream: int
) -> None:
    """Freeing blocks until all work is done; no other thread can enter the driver meanwhile."""
    gradred.allreduce(DeviceArray(device, np.ones(1)), comm=comm, stream=stream)
    device.must("cuStreamSynchronize", ctypes.c_void_p(stream))
    spare = DeviceArray(device, np.ones(5))
    x = Late(ramp(700_001), stream)
    device.set("synchronises", 1)
    try:
        y = gradred.allreduce(x.array, out=x.array, comm=comm, stream=stream)
        del spare
        found = read(y, stream)
        finish(stream)
    finally:
        device.set("synchronises", 0)
    np.testing.assert_array_equal(found, ramp(700_001) * SIZE)


@pytest.mark.skipif(SIZE == 1, reason="one rank waits for no other")
def test_driver_that_waits_for_the_device_in_a_blocking_call_beside(
    comm: gradred.Comm, device: Driver, stream: int
) -> None:
    """The thread that waits for that call is in the driver, and advances no other operation."""
    other = gradred.Comm(MPI.COMM_WORLD.Dup())
    gradred.allreduce(DeviceArray(device, ramp(70_001)), comm=other)
    gradred.allreduce(DeviceArray(device, ramp(700_001)), comm=comm, stream=stream)
    finish(stream)
    for _ in range(3):  # releases the resources of this call
        gradred.iallreduce(np.ones(1), comm=comm).wait()
        time.sleep(0.05)
    pinned = device.count("pinned")
    x = Late(ramp(700_001), stream)
    device.set("least_delay", 300_000_000)
    device.copy(x.array.address, x.values.ctypes.data, x.values.nbytes, stream)
    device.set("least_delay", 0)
    y = ramp(2_300_017)  # no pinned memory of this length exists yet
    given = y if RANK == SIZE - 1 else DeviceArray(device, y)
    device.set("synchronises", 1)
    try:
        result = gradred.allreduce(x.array, out=x.array, comm=comm, stream=stream)
        assert device.count("pinned") == pinned
        beside = gradred.allreduce(given, out=given, comm=other)
        found = read(result, stream)
        finish(stream)
    finally:
        device.set("synchronises", 0)
    np.testing.assert_array_equal(found, ramp(700_001) * SIZE)
    host = beside.get() if isinstance(beside, DeviceArray) else beside
    np.testing.assert_array_equal(host, ramp(2_300_017) * SIZE)
    other.Free()


class Beside:
    """A call on another communicator that needs a resource for the first time, and its result."""

    def __init__(self, driver: Driver, how: str) -> None:
        self.driver, self.comm = driver, gradred.Comm(MPI.COMM_WORLD.Dup())
        self.comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
        self.stream = driver.stream()
        self.inputs = [values.astype(self.dtype(how)) for values in self.values(how)]
        self.arrays = [DeviceArray(driver, values) for values in self.inputs]
        whole = np.zeros(SIZE * len(self.inputs[0]), self.dtype(how))
        self.gathered = DeviceArray(driver, whole)
        if how == "own arrays":  # the workspace exists already
            gradred.allreduce(DeviceArray(driver, ramp(90_001)), comm=self.comm)
            own = gradred.empty(90_001, device="cuda")
            driver.copy(own.__cuda_array_interface__["data"][0], *self.source)
            self.arrays = [own]
        self.call = getattr(self, "_" + how.replace(" ", "_"), self._in_place)

    @staticmethod
    def dtype(how: str) -> str:
        return "int16" if how in ("whole", "pieces", "stream") else "float32"

    @staticmethod
    def values(how: str) -> list[npt.NDArray[Any]]:
        counts = {"long list": range(977, 997), "short list": range(50, 70), "whole": [900_001]}
        counts |= {"pieces": [9_000_001], "stream": [17_000_001]}
        return [ramp(count) for count in counts.get(how, [90_001])]

    @property
    def source(self) -> tuple[int, int]:
        return self.inputs[0].ctypes.data, self.inputs[0].nbytes

    def _in_place(self) -> None:
        for x in self.arrays:
            gradred.allreduce(x, out=x, comm=self.comm)

    def _short_list(self) -> None:
        gradred.allreduce_many(self.arrays, out=self.arrays, comm=self.comm)

    _long_list = _short_list

    def _whole(self) -> None:
        gradred.allgather(self.arrays[0], out=self.gathered, comm=self.comm)
        sums = self.gathered.get().reshape(SIZE, -1).sum(axis=0).astype("int16")
        self.driver.copy(self.arrays[0].address, sums.ctypes.data, sums.nbytes)

    def _stream(self) -> None:
        (x,) = self.arrays
        gradred.allreduce(x, out=x, comm=self.comm, stream=self.stream)

    def check(self) -> None:
        finish(self.stream)
        for x, values in zip(self.arrays, self.inputs, strict=True):
            found = np.empty_like(values)
            address = x.__cuda_array_interface__["data"][0]
            self.driver.copy(found.ctypes.data, address, found.nbytes)
            np.testing.assert_array_equal(found, values * SIZE)
        self.comm.Free()
        self.driver.destroy(self.stream)


@pytest.mark.skipif(SIZE == 1, reason="one rank waits for no other")
@pytest.mark.parametrize(
    "how",
    ["short list", "long list", "whole", "pieces", "stream", "workspace", "own arrays"],
)
def test_nothing_stops_the_device_while_a_stream_waits_for_peers(
    comm: gradred.Comm, device: Driver, stream: int, how: str
) -> None:
    """Another rank makes these calls in the opposite order."""
    x = DeviceArray(device, ramp(1009))
    gradred.iallreduce(x, out=x, comm=comm, stream=stream).wait()
    finish(stream)
    beside = Beside(device, how)
    x = DeviceArray(device, ramp(1009))
    gc.collect()  # freeing arrays of earlier tests later would block on the device
    MPI.COMM_WORLD.Barrier()
    device.set("synchronises", 1)
    try:
        if RANK == 0:
            request = gradred.iallreduce(x, out=x, comm=comm, stream=stream)
        beside.call()
        if RANK != 0:
            request = gradred.iallreduce(x, out=x, comm=comm, stream=stream)
        request.wait()
        finish(stream)
    finally:
        device.set("synchronises", 0)
    np.testing.assert_array_equal(x.get(), ramp(1009) * SIZE)
    beside.check()


def test_memory_of_a_new_result_may_be_in_use_by_its_librarys_stream(
    comm: gradred.Comm, device: Driver, stream: int
) -> None:
    """As memory of a pool: the call comes after that work, in whatever stream it is."""
    own = device.stream()

    class Pooled(DeviceArray):
        def __array_namespace__(self) -> Any:
            def empty_like(x: DeviceArray) -> DeviceArray:
                device.set("least_delay", 20_000_000)
                made = DeviceArray(device, np.full(x.shape, 99, x.dtype), stream=own)
                device.set("least_delay", 0)
                device.set("most_delay", 50_000)
                return made

            return SimpleNamespace(empty_like=empty_like)

    x = Pooled(device, ramp(1000))
    y = gradred.allreduce(x, comm=comm, stream=stream)
    finish(stream)
    finish(own)
    np.testing.assert_array_equal(y.get(), ramp(1000) * SIZE)
    device.destroy(own)


def test_stream_that_is_captured_is_refused_on_all_ranks(
    comm: gradred.Comm, device: Driver, stream: int
) -> None:
    x = DeviceArray(device, ramp(10))
    handle = ctypes.c_void_p(stream)
    device.must("cuStreamBeginCapture_v2", handle, 0)
    with pytest.raises(UsageError, match="captured in a CUDA graph"):
        gradred.allreduce(x, comm=comm, stream=stream)
    device.must("cuStreamEndCapture", handle, None)
    y = gradred.allreduce(x, comm=comm, stream=stream)
    finish(stream)
    np.testing.assert_array_equal(y.get(), ramp(10) * SIZE)


def test_capture_is_not_disturbed_by_calls_in_flight(
    comm: gradred.Comm, device: Driver, stream: int
) -> None:
    """Other threads' calls of the driver in that time would end a capture in global mode."""
    x = DeviceArray(device, ramp(700_001))
    gradred.allreduce(x, comm=comm)
    handle = ctypes.c_void_p(stream)
    for _ in range(3):
        request = gradred.iallreduce(x, comm=comm)
        device.must("cuStreamBeginCapture_v2", handle, 0)
        y = request.wait()
        gradred.allreduce(x, out=y, comm=comm)
        device.must("cuStreamEndCapture", handle, None)
        np.testing.assert_array_equal(y.get(), ramp(700_001) * SIZE)


def test_streams_in_great_number(comm: gradred.Comm, device: Driver, stream: int) -> None:
    """Each stream has its own resources while its call is in flight."""
    streams = [device.stream() for _ in range(20)]
    for _ in range(2):
        made = []
        for i, one in enumerate(streams):
            x = Late(ramp(1000 + i), one)
            made.append((x, gradred.allreduce(x.array, comm=comm, stream=one)))
        found = [read(y, one) for (_, y), one in zip(made, streams, strict=True)]
        for i, one in enumerate(streams):
            finish(one)
            np.testing.assert_array_equal(found[i], ramp(1000 + i) * SIZE)
    for one in streams:
        device.destroy(one)


def test_nothing_is_left(comm: gradred.Comm, device: Driver, stream: int) -> None:
    def use_it() -> None:
        x = Late(ramp(1000), stream)
        y = gradred.allreduce(x.array, comm=comm, stream=stream)
        found = read(y, stream)
        finish(stream)
        np.testing.assert_array_equal(found, ramp(1000) * SIZE)

    def counts() -> list[int]:
        gradred.allreduce(np.zeros(1), comm=comm)  # releases what has ended
        return [device.count(name) for name in ("streams", "events", "pinned")]

    for _ in range(5):
        use_it()
    before = counts()
    for _ in range(10):
        use_it()
    assert counts() == before


class OfCudaCore:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 4711


@pytest.mark.parametrize(
    ("given", "handle"),
    [
        (1, 1),
        (2, 2),
        (4711, 4711),
        (OfCudaCore(), 4711),
        (SimpleNamespace(ptr=4711), 4711),  # CuPy
        (SimpleNamespace(ptr=0), 1),
        (SimpleNamespace(cuda_stream=4711), 4711),  # PyTorch
        (SimpleNamespace(cuda_stream=0), 1),
        (SimpleNamespace(handle=ctypes.c_void_p(4711)), 4711),  # Numba
        (SimpleNamespace(handle=ctypes.c_void_p(0)), 1),
    ],
)
def test_streams_of_all_libraries_are_understood(given: Any, handle: int) -> None:
    assert handle_of(given, "a test") == handle


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (0, "Pass 1 for the legacy default stream"),
        (-1, "below zero"),
        (True, "not a CUDA stream"),
        ("stream", "not a CUDA stream"),
        (1.0, "not a CUDA stream"),
    ],
)
def test_what_is_no_stream_is_refused(comm: gradred.Comm, given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gradred.allreduce(np.ones(1), comm=comm, stream=given)
    with pytest.raises(UsageError, match=said):
        gradred.iallreduce(np.ones(1), comm=comm).wait_stream(given)
    assert gradred.allreduce(np.ones(1), comm=comm) == SIZE
