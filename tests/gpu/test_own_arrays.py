"""Arrays of `gradred.empty(device=...)`: memory that peers' devices access where it lies."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gpu.simulated import Driver, the_driver
from gpu.test_device_arrays import RANK, SIZE, on_device, total, values
from gpu.test_workspaces import COUNT, LAST, new_comm
from mpi4py import MPI

import gradred
from gradred import DeviceError, UsageError

alone = pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")


def address_of(x: Any) -> int:
    return int(x.__cuda_array_interface__["data"][0])


def own(content: npt.NDArray[Any], device: Any = "cuda") -> gradred.DeviceArray:
    made = gradred.empty(content.shape, content.dtype, device=device)
    content = np.ascontiguousarray(content)
    the_driver().copy(address_of(made), content.ctypes.data, content.nbytes)
    return made


def host(x: gradred.DeviceArray) -> npt.NDArray[Any]:
    found = np.empty(x.shape, x.dtype)
    the_driver().copy(found.ctypes.data, address_of(x), x.nbytes)
    return found


def block(x: npt.NDArray[Any], rank: int = RANK) -> npt.NDArray[Any]:
    return x[rank * COUNT : (rank + 1) * COUNT]


@alone
@pytest.mark.parametrize("several", [False, True], ids=["one GPU", "two GPUs"])
def test_nothing_is_copied_by_allreduce(device: Driver, several: bool) -> None:
    device.use_in_this_thread(RANK % device.devices if several else 0)
    try:
        with new_comm() as comm:
            x = own(values(COUNT))
            np.testing.assert_array_equal(host(gradred.allreduce(x, comm=comm)), total(COUNT))
            y = gradred.empty_like(x)
            before = device.count("copies"), device.count("launches")
            comm.Allreduce(x, y)
            comm.Allreduce(MPI.IN_PLACE, x)
            assert device.count("copies") == before[0]
            works = several or RANK == 0
            assert device.count("launches") - before[1] == (2 if works else 0)
            for made in (x, y):
                np.testing.assert_array_equal(host(made), total(COUNT))
            assert comm.device_path.startswith("devices: ")
            assert "stay where they lie" in comm.device_path
    finally:
        device.use_in_this_thread(0)


def inputs_and_result(count: int, dtype: str, op: Any) -> tuple[list[Any], Any]:
    """The inputs of all ranks, and the result of the operation; a factor is 2."""
    given = [values(count, dtype, rank) for rank in range(SIZE)]
    if op == "avg":
        given = [SIZE * each for each in given]
    wanted = np.max(given, axis=0) if op == "max" else total(count, dtype)
    if not isinstance(op, str):
        wanted = 2 * wanted
    return given, wanted


@alone
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize("op", ["sum", "max", "avg", gradred.premul(2.0)], ids=str)
def test_operations(device: Driver, dtype: str, op: Any) -> None:
    count = COUNT * (4 if dtype == "uint8" else 1)
    given, wanted = inputs_and_result(count, dtype, op)
    with new_comm() as comm:
        x = own(given[RANK].astype(dtype))
        found = host(gradred.allreduce(x, op, comm=comm))
        np.testing.assert_array_equal(found, wanted.astype(dtype))
        of_integers = op == "avg" and np.dtype(dtype).kind in "iu"  # the host computes their means
        assert comm.device_path.startswith("devices: ") == (not of_integers)


@alone
def test_other_calls(device: Driver) -> None:
    with new_comm() as comm:
        everything = own(values(COUNT * SIZE))
        found = gradred.reduce_scatter_block(everything, comm=comm)
        np.testing.assert_array_equal(host(found), block(total(COUNT * SIZE)))
        gathered = host(gradred.allgather(found, comm=comm))
        np.testing.assert_array_equal(gathered, total(COUNT * SIZE))
        x = own(values(COUNT))
        np.testing.assert_array_equal(
            host(gradred.bcast(x, root=SIZE - 1, comm=comm)), values(COUNT, rank=SIZE - 1)
        )
        assert "stay where they lie" in comm.device_path
        # In place, the blocks that other ranks read are also those that get the result.
        comm.Reduce_scatter_block(MPI.IN_PLACE, everything)
        np.testing.assert_array_equal(host(everything)[:COUNT], block(total(COUNT * SIZE)))


@alone
@pytest.mark.parametrize("where", ["input", "result", "odd ranks"])
def test_arrays_beside_those_of_others(device: Driver, where: str) -> None:
    mine, theirs = own(values(COUNT)), on_device(values(COUNT))
    x: Any = mine if where == "input" or (where == "odd ranks" and RANK % 2) else theirs
    y: Any = own(values(COUNT)) if where == "result" else on_device(values(COUNT))
    with new_comm(ipc_bytes=100_000) as comm:
        for _ in range(3):
            comm.Allreduce(x, y)
            found = host(y) if isinstance(y, gradred.DeviceArray) else y.get()
            np.testing.assert_array_equal(found, total(COUNT))


@alone
def test_arrays_that_come_and_go(device: Driver) -> None:
    """Arrays at new addresses of memory that peers have opened, and in new memory."""
    draw = np.random.default_rng(RANK)
    with new_comm() as comm, new_comm() as other:
        kept: list[Any] = []
        for turn in range(30):
            count = 20_000 + 1000 * turn if turn != 15 else 9_000_000
            kept = [each for each in kept if draw.random() < 0.5]
            kept.append(gradred.empty(int(draw.integers(1, 100_000)), device="cuda"))
            x = own(values(count))
            for one in (comm, other):
                comm_result = gradred.allreduce(x, comm=one)
                np.testing.assert_array_equal(host(comm_result), total(count))
                del comm_result
        assert comm.device_path.startswith("devices: ")


@alone
def test_many_in_flight(device: Driver) -> None:
    with new_comm() as comm, new_comm() as other:
        made = []
        for turn in range(8):
            for one in (comm, other):
                x = own(values(COUNT + turn))
                made.append((gradred.iallreduce(x, comm=one), COUNT + turn))
        for i in np.random.default_rng(RANK).permutation(len(made)):
            request, count = made[i]
            np.testing.assert_array_equal(host(request.wait()), total(count))


@alone
def test_peers_that_cannot_open_them_read_the_workspaces(device: Driver) -> None:
    with new_comm() as comm:
        x = on_device(values(COUNT))
        gradred.allreduce(x, comm=comm)  # this opens the workspaces
        count = 9 << 20  # too long for an allocation that is open already
        mine = own(values(count))
        if LAST:
            device.fail("cuIpcOpenMemHandle", 1)
        try:
            for _ in range(2):
                np.testing.assert_array_equal(
                    host(gradred.allreduce(mine, comm=comm)), total(count)
                )
        finally:
            device.fail("cuIpcOpenMemHandle", 0)
        assert comm.device_path.startswith("devices: ")
        assert f"rank {SIZE - 1}" in comm.device_path
        assert "cuIpcOpenMemHandle" in comm.device_path


@alone
def test_work_of_the_programs_streams_comes_first(device: Driver) -> None:
    class Later:
        """The array's values arrive late, in a stream that the interface names."""

        def __init__(self, content: npt.NDArray[Any]) -> None:
            self.memory = gradred.empty(content.shape, content.dtype, device="cuda")
            self.stream = device.stream()
            self.content = content
            device.copy(address_of(self.memory), content.ctypes.data, content.nbytes, self.stream)

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return self.memory.__cuda_array_interface__ | {"stream": self.stream}

    device.set("most_delay", 5_000_000)
    with new_comm() as comm:
        for turn in range(5):
            x = Later(values(COUNT + turn))
            y = gradred.empty(COUNT + turn, device="cuda")
            comm.Allreduce(x, y)
            np.testing.assert_array_equal(host(y), total(COUNT + turn))
            device.destroy(x.stream)


def test_where_nothing_is_exported_arrays_are_copied(device: Driver) -> None:
    """Devices without IPC, as on MIG instances and in sandboxes."""
    count = 9 << 20  # too long for the existing allocations
    device.fail("cuIpcGetMemHandle", 801)
    try:
        x = own(values(count))
        with new_comm(ipc_bytes=100 << 20) as comm:
            np.testing.assert_array_equal(host(gradred.allreduce(x, comm=comm)), total(count))
            assert SIZE == 1 or "cuIpcGetMemHandle" in comm.device_path
    finally:
        device.fail("cuIpcGetMemHandle", 0)


def test_what_the_default_stream_does_comes_first(device: Driver) -> None:
    with new_comm() as comm:
        x = gradred.empty(COUNT, device="cuda")
        content = values(COUNT)
        device.set("least_delay", 5_000_000)
        device.must(
            "cuMemcpyAsync",
            *(ctypes.c_uint64(n) for n in (address_of(x), content.ctypes.data)),
            ctypes.c_size_t(x.nbytes),
            None,
        )
        device.set("least_delay", 0)
        np.testing.assert_array_equal(host(gradred.allreduce(x, comm=comm)), total(COUNT))


def test_no_memory_is_taken_to_learn_of_the_device(device: Driver) -> None:
    """Allocating and freeing may wait for the device's work."""
    first = gradred.empty(10, device="cuda")
    device.fail("cuMemAlloc", 2)
    try:
        second = gradred.empty(10, device="cuda")
    finally:
        device.fail("cuMemAlloc", 0)
    assert first.device == second.device


# ---- the memory ----------------------------------------------------------------------------------


def test_what_it_is(device: Driver) -> None:
    device.use_in_this_thread(1)
    device.use_in_this_thread(0)
    x = gradred.empty((3, 4), "float64", device="cuda:1")
    assert (x.shape, x.dtype, x.nbytes, x.device) == ((3, 4), np.dtype("f8"), 96, "cuda:1")
    assert "cuda:1" in repr(x)
    assert gradred.empty_like(x).device == "cuda:1"
    assert address_of(gradred.empty(0, device="cuda")) == 0
    on_host = gradred.empty_like(np.ones(3))
    assert isinstance(on_host, np.ndarray)


def test_memory_is_used_again_when_the_device_is_done_with_it(device: Driver) -> None:
    """gradred waits for the device once much memory has been released."""
    count = 33 << 20
    x = gradred.empty(count, "float32", device="cuda")
    place = address_of(x)
    held = device.count("bytes")
    stream = device.stream()
    content = np.ones(1 << 20, "float32")
    device.set("most_delay", 50_000_000)
    device.copy(place, content.ctypes.data, content.nbytes, stream)
    del x
    gc.collect()
    y = gradred.empty(count, "float32", device="cuda")  # waits for the copy
    assert address_of(y) == place
    content[:] = 0
    device.copy(place, content.ctypes.data, content.nbytes)
    assert not host(y)[: len(content)].any()
    assert device.count("bytes") == held
    device.destroy(stream)


@pytest.mark.parametrize("device_of", ["cpu:1", "cuda:x", "gpu", 1.5, True, -1])
def test_devices_that_are_none(device: Driver, device_of: Any) -> None:
    with pytest.raises(UsageError, match="it is not a GPU"):
        gradred.empty(3, device=device_of)


def test_errors(device: Driver) -> None:
    with pytest.raises(DeviceError, match="cuDevicePrimaryCtxGetState"):
        gradred.empty(3, device="cuda:7")
    device.fail("cuMemAlloc", 2)
    try:
        with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
            gradred.empty(100 << 20, device="cuda")
    finally:
        device.fail("cuMemAlloc", 0)
    pytest.importorskip("ml_dtypes")
    with pytest.raises(UsageError, match="no name for bfloat16"):
        gradred.empty(3, "bfloat16", device="cuda")
