"""Arrays that the program has allocated: peers' devices access those that CUDA exports."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gpu.simulated import MANAGED, POOL, DeviceArray, Driver, the_driver
from gpu.test_device_arrays import RANK, SIZE, on_device, total, values
from gpu.test_own_arrays import inputs_and_result, own
from gpu.test_workspaces import COUNT, LAST, everyones, new_comm
from mpi4py import MPI

import gradred

pytestmark = pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
WHERE_THEY_LIE = "those that CUDA exports stay where they lie"


def copies_of(call: Callable[[], Any], device: Driver) -> int:
    """The number of copies on all ranks during a call, which must move gradred's data only."""
    before = device.count("copies")
    call()
    return everyones(device.count("copies") - before)


def put(x: DeviceArray, content: npt.NDArray[Any]) -> None:
    x.driver.copy(x.address, content.ctypes.data, content.nbytes)


def meet() -> None:
    """Free garbage, and let all ranks meet: ranks release and check open memory between calls."""
    gc.collect()
    MPI.COMM_WORLD.Barrier()


@pytest.mark.parametrize("several", [False, True], ids=["one GPU", "two GPUs"])
@pytest.mark.parametrize("in_place", [False, True])
def test_nothing_is_copied_from_the_third_call_on(
    device: Driver, several: bool, in_place: bool
) -> None:
    device.use_in_this_thread(RANK % device.devices if several else 0)
    try:
        with new_comm() as comm:
            x, y = on_device(values(COUNT)), on_device(np.zeros(COUNT, "float32"))
            sent: Any = MPI.IN_PLACE if in_place else x
            found = x if in_place else y
            for turn in range(4):
                before = device.count("imported")
                copies = copies_of(lambda: comm.Allreduce(sent, found), device)
                wanted = total(COUNT) * (SIZE**turn if in_place else 1)
                np.testing.assert_array_equal(found.get(), wanted)
                opened = device.count("imported") - before
                if turn > 0:  # turn 0 also opens the workspaces
                    assert opened == ((1 if in_place else 2) * (SIZE - 1) if turn == 1 else 0)
                assert (copies == 0) == (turn > 1)
                assert (WHERE_THEY_LIE in comm.device_path) == (turn > 0)
            assert comm.device_path.startswith("devices: ")
    finally:
        device.use_in_this_thread(0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize("op", ["sum", "max", "avg", gradred.premul(2.0)], ids=str)
def test_operations_on_parts_of_one_allocation(device: Driver, dtype: str, op: Any) -> None:
    """Parts of allocations, as in pools of array libraries, at other offsets on each rank."""
    count = COUNT * (4 if dtype == "uint8" else 1)
    given, wanted = inputs_and_result(count, dtype, op)
    whole = on_device(np.zeros(2 * count + 100, dtype))
    with new_comm() as comm:
        for turn in range(4):
            begin = 3 * RANK + turn
            content = np.full(2 * count + 100, 7, dtype)
            content[begin : begin + count] = given[RANK].astype(dtype)
            put(whole, content)
            x = whole.part(begin, begin + count)
            y = whole.part(begin + count + 5, begin + 2 * count + 5)
            gradred.allreduce(x, op, out=y, comm=comm)
            content[begin + count + 5 : begin + 2 * count + 5] = wanted.astype(dtype)
            np.testing.assert_array_equal(whole.get(), content)
        of_integers = op == "avg" and np.dtype(dtype).kind in "iu"  # the host computes their means
        assert (WHERE_THEY_LIE in comm.device_path) == (isinstance(op, str) and not of_integers)


def test_other_calls(device: Driver) -> None:
    with new_comm() as comm:
        everything = on_device(values(COUNT * SIZE))
        part, gathered = (on_device(np.zeros(n, "float32")) for n in (COUNT, COUNT * SIZE))
        x = on_device(values(COUNT))
        for _ in range(4):
            put(x, values(COUNT))
            comm.Reduce_scatter_block(everything, part)
            np.testing.assert_array_equal(part.get(), total(COUNT * SIZE)[RANK * COUNT :][:COUNT])
            comm.Allgather(part, gathered)
            np.testing.assert_array_equal(gathered.get(), total(COUNT * SIZE))
            comm.Bcast(x, root=SIZE - 1)
            np.testing.assert_array_equal(x.get(), values(COUNT, rank=SIZE - 1))
        assert WHERE_THEY_LIE in comm.device_path
        # In place, the blocks that other ranks read are also those that get the result.
        for _ in range(3):
            put(everything, values(COUNT * SIZE))
            comm.Reduce_scatter_block(MPI.IN_PLACE, everything)
            np.testing.assert_array_equal(
                everything.get()[:COUNT], total(COUNT * SIZE)[RANK * COUNT :][:COUNT]
            )


Make = Callable[[npt.NDArray[Any]], Any]
OTHERS: dict[str, Make] = {
    "pool": lambda x: DeviceArray(the_driver(), x, how=POOL),
    "managed": lambda x: DeviceArray(the_driver(), x, how=MANAGED),
    "own": own,
    "host": np.array,
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("where", ["input", "result", "odd ranks"])
def test_beside_arrays_of_other_kinds(device: Driver, other: str, where: str) -> None:
    make = OTHERS[other]
    odd = where == "odd ranks" and RANK % 2
    x = (on_device if where == "input" or odd else make)(values(COUNT))
    y = (on_device if where == "result" or odd else make)(np.zeros(COUNT, "float32"))
    out = on_device(np.zeros(COUNT, "float32"))
    with new_comm() as comm:
        for _ in range(4):
            comm.Allreduce(x, y)
            comm.Allreduce(y, out)  # gives an array whose values the test can read
            np.testing.assert_array_equal(out.get(), SIZE * total(COUNT))
        if other == "own":
            assert WHERE_THEY_LIE in comm.device_path or RANK % 2 == 0


def test_they_wait_for_no_turns_on_a_device(device: Driver) -> None:
    """Without MPS, arrays that have to be copied go through host memory."""
    device.set("mps", 0)
    try:
        x, y = on_device(values(COUNT)), on_device(np.zeros(COUNT, "float32"))
        with new_comm() as comm:
            for _ in range(4):
                before = device.count("launches")
                comm.Allreduce(x, y)
                np.testing.assert_array_equal(y.get(), total(COUNT))
                assert device.count("launches") - before == (RANK == 0)
            assert WHERE_THEY_LIE in comm.device_path
    finally:
        device.set("mps", 1)


def test_an_element_that_is_not_aligned(device: Driver) -> None:
    """Kernels cannot read such an array where it lies."""
    whole = on_device(np.zeros(4 * COUNT + 8, "uint8"))
    at, given = whole.address + 1, values(COUNT)
    x = on_device(values(COUNT))
    with new_comm() as comm:
        for _ in range(4):
            device.copy(at, given.ctypes.data, given.nbytes)
            buffer = MPI.buffer.fromaddress(at, given.nbytes)
            comm.Allreduce(MPI.IN_PLACE, [buffer, MPI.FLOAT] if LAST else [x, MPI.FLOAT])
            found = np.empty_like(given)
            device.copy(found.ctypes.data, at, found.nbytes)
            put(x, given)
            if LAST:
                np.testing.assert_array_equal(found, total(COUNT))


# ---- memory that is freed ------------------------------------------------------------------------


def test_memory_that_is_allocated_anew_at_its_address(device: Driver) -> None:
    with new_comm() as comm:
        addresses = set()
        for turn in range(6):
            x = on_device(values(COUNT) + turn)
            addresses.add(x.address)
            for _ in range(3):
                y = on_device(np.zeros(COUNT, "float32"))
                comm.Allreduce(x, y)
                np.testing.assert_array_equal(y.get(), total(COUNT) + SIZE * turn)
                comm.Allreduce(MPI.IN_PLACE, y)
                np.testing.assert_array_equal(y.get(), SIZE * (total(COUNT) + SIZE * turn))
                y.free()
            x.free()
        assert len(addresses) < 6
        assert WHERE_THEY_LIE in comm.device_path


def test_another_allocation_where_parts_of_several_were(device: Driver) -> None:
    with new_comm() as comm:
        for turn in range(4):
            several = [on_device(values(COUNT + turn)) for _ in range(3)]
            for _ in range(3):
                for x in several:
                    comm.Allreduce(MPI.IN_PLACE, x)
            for x in several:
                np.testing.assert_array_equal(x.get(), SIZE**2 * total(COUNT + turn))
                x.free()
            one = on_device(values(4 * COUNT))
            for _ in range(3):
                comm.Allreduce(MPI.IN_PLACE, one)
            np.testing.assert_array_equal(one.get(), SIZE**2 * total(4 * COUNT))
            one.free()


@pytest.mark.parametrize("again", [True, False], ids=["same addresses", "others"])
def test_peers_close_what_was_freed(device: Driver, again: bool) -> None:
    made = [on_device(values(COUNT)) for _ in range(1 if again else 100)]
    y = on_device(np.zeros(COUNT, "float32"))
    with new_comm() as comm, new_comm() as other:
        most = 0
        meet()
        before = device.count("open")
        for _ in range(100):
            x = made.pop() if made else on_device(values(COUNT))
            for one in (comm, comm, other):
                one.Allreduce(x, y)
                np.testing.assert_array_equal(y.get(), total(COUNT))
            x.free()
            most = max(most, device.count("open") - before)
        assert most <= 6 * (SIZE - 1)
        assert WHERE_THEY_LIE in comm.device_path
        assert WHERE_THEY_LIE in other.device_path


def test_what_another_communicator_has_open_of_it_is_closed_first(device: Driver) -> None:
    y = on_device(np.zeros(COUNT, "float32"))
    with new_comm() as comm, new_comm() as other:
        for turn in range(6):
            x = on_device(values(COUNT) + turn)
            for _ in range(3):
                (other if turn % 2 else comm).Allreduce(x, y)
                np.testing.assert_array_equal(y.get(), total(COUNT) + SIZE * turn)
            x.free()
        assert WHERE_THEY_LIE in comm.device_path
        assert WHERE_THEY_LIE in other.device_path


def test_peers_close_it_with_the_call_that_finds_another_there(device: Driver) -> None:
    y = on_device(np.zeros(COUNT, "float32"))
    with new_comm() as comm:
        x = on_device(values(COUNT))
        address = x.address
        for _ in range(3):
            comm.Allreduce(x, y)
        before = device.count("open")
        x.free()
        x = on_device(values(COUNT))
        assert x.address == address
        comm.Allreduce(x, y)
        np.testing.assert_array_equal(y.get(), total(COUNT))
        assert device.count("open") == before - (SIZE - 1)


def test_peers_close_it_where_no_other_one_is_exported_any_more(device: Driver) -> None:
    x, y, z = (on_device(values(COUNT)) for _ in range(3))
    with new_comm() as comm:
        for _ in range(3):
            comm.Allreduce(x, y)
        meet()
        before = device.count("open")
        for _ in range(3):
            comm.Allreduce(z, y)
        assert device.count("open") == before + SIZE - 1
        z.free()
        for _ in range(1100):
            comm.Allreduce(x, y)
        meet()
        assert device.count("open") == before


def test_peers_close_it_when_the_communicator_is_freed(device: Driver) -> None:
    meet()
    before = device.count("open")
    with new_comm() as comm:
        x = on_device(values(COUNT))
        for _ in range(3):
            comm.Allreduce(MPI.IN_PLACE, x)
        assert device.count("open") > before
    meet()
    assert device.count("open") <= before


def test_what_was_opened_for_one_communicator_serves_others(device: Driver) -> None:
    x = on_device(values(COUNT))
    with new_comm() as comm, new_comm() as other:
        other.Allreduce(MPI.IN_PLACE, own(np.zeros(COUNT, "float32")))
        for _ in range(3):
            comm.Allreduce(x, own(np.zeros(COUNT, "float32")))
        before = device.count("open")
        y = own(np.zeros(COUNT, "float32"))
        other.Allreduce(x, y)
        assert WHERE_THEY_LIE in other.device_path
        found = np.empty(COUNT, "float32")
        device.copy(found.ctypes.data, y.__cuda_array_interface__["data"][0], y.nbytes)
        np.testing.assert_array_equal(found, total(COUNT))
        assert device.count("open") == before


def test_many_in_flight(device: Driver) -> None:
    with new_comm() as comm, new_comm() as other:
        arrays = [on_device(values(COUNT + turn)) for turn in range(8)]
        for _ in range(3):
            made = [
                (gradred.iallreduce(x, comm=one), COUNT + turn)
                for turn, x in enumerate(arrays)
                for one in (comm, other)
            ]
            for i in np.random.default_rng(RANK).permutation(len(made)):
                request, count = made[i]
                np.testing.assert_array_equal(request.wait().get(), total(count))


# ---- where they are not taken --------------------------------------------------------------------


def check(comm: gradred.Comm, x: DeviceArray, times: int = 4) -> None:
    y = on_device(np.zeros(x.shape, "float32"))
    for _ in range(times):
        comm.Allreduce(x, y)
        np.testing.assert_array_equal(y.get(), total(x.shape[0]))


def test_the_knob(device: Driver) -> None:
    with new_comm(ipc_arrays="own" if LAST else "all") as comm:
        x = on_device(values(COUNT))
        check(comm, x, times=1)
        before = device.count("imported")
        check(comm, x)
        assert comm.device_path == "devices: all ranks' arrays are on one"
        opened = device.count("imported") - before
        assert opened == 2 * (SIZE - (1 if LAST else 2))
        mine = own(values(COUNT))
        comm.Allreduce(MPI.IN_PLACE, mine)
        assert "those of gradred.empty stay where they lie" in comm.device_path


def test_peers_that_cannot_open_them_read_the_workspaces(device: Driver) -> None:
    with new_comm() as comm:
        mine = own(values(COUNT))
        comm.Allreduce(MPI.IN_PLACE, mine)
        x = on_device(values(COUNT))
        if LAST:
            device.fail("cuIpcOpenMemHandle", 208)
        try:
            check(comm, x)
        finally:
            device.fail("cuIpcOpenMemHandle", 0)
        check(comm, x)
        assert "others are copied: " in comm.device_path
        assert f"rank {SIZE - 1}" in comm.device_path
        assert "CUDA_ERROR_ALREADY_MAPPED" in comm.device_path
        assert copies_of(lambda: comm.Allreduce(MPI.IN_PLACE, mine), device) == 0


def test_nothing_stays_open_when_one_cannot_open_it(device: Driver) -> None:
    """No later call would find that the memory was freed."""
    with new_comm() as comm:
        mine = own(values(COUNT))
        comm.Allreduce(MPI.IN_PLACE, mine)
        meet()
        before = device.count("open")
        check(comm, on_device(values(COUNT)))
        x = on_device(values(COUNT))
        if LAST:
            device.fail("cuIpcOpenMemHandle", 208)
        try:
            check(comm, x)
        finally:
            device.fail("cuIpcOpenMemHandle", 0)
        assert "others are copied: " in comm.device_path
        meet()
        assert device.count("open") == before


def test_an_allocation_that_is_not_exported_after_all(device: Driver) -> None:
    with new_comm() as comm:
        x = on_device(values(COUNT))
        if LAST:
            device.fail("cuIpcGetMemHandle", 801)
        try:
            check(comm, x)
        finally:
            device.fail("cuIpcGetMemHandle", 0)
        assert comm.device_path == "devices: all ranks' arrays are on one"
        check(comm, x)
        assert comm.device_path == "devices: all ranks' arrays are on one"
        check(comm, on_device(values(COUNT)))
        assert WHERE_THEY_LIE in comm.device_path


def test_where_a_driver_opens_something_else_they_are_copied(device: Driver) -> None:
    """As a driver would that reports where the pages begin, and not the allocation."""
    with new_comm() as comm:
        x = on_device(np.zeros(4 * COUNT, np.float32))  # all zeros: the content proves nothing
        gradred.allreduce(x, comm=comm)
        device.set("shift", 4096)
        try:
            for _ in range(3):
                assert not gradred.allreduce(x, comm=comm).get().any()
        finally:
            device.set("shift", 0)
        assert "opened another part of a peer's memory" in comm.device_path
        check(comm, on_device(values(4 * COUNT)))


def test_while_a_stream_waits_for_peers_nothing_is_exported(device: Driver) -> None:
    x, y = on_device(values(COUNT)), on_device(values(COUNT))
    with new_comm() as comm:
        check(comm, x, times=1)
        meet()
        opened = device.count("open")
        device.set("least_delay", 20_000_000)
        stream = device.stream()
        request = gradred.iallreduce(y, comm=comm, stream=stream)
        device.set("least_delay", 0)
        assert device.count("open") == opened
        np.testing.assert_array_equal(gradred.allreduce(x, comm=comm).get(), total(COUNT))
        np.testing.assert_array_equal(request.wait().get(), total(COUNT))
        check(comm, x)
        assert WHERE_THEY_LIE in comm.device_path
        device.destroy(stream)


def test_work_of_the_programs_streams_comes_first(device: Driver) -> None:
    stream = device.stream()
    x = DeviceArray(device, values(COUNT), stream=stream)
    y = DeviceArray(device, np.zeros(COUNT, "float32"), stream=stream)
    device.set("most_delay", 5_000_000)
    with new_comm() as comm:
        for turn in range(6):
            given, old = values(COUNT) + turn, np.full(COUNT, 99, "float32")
            device.copy(x.address, given.ctypes.data, x.nbytes, stream)
            device.copy(y.address, old.ctypes.data, y.nbytes, stream)
            comm.Allreduce(x, y)
            found = np.empty(COUNT, "float32")
            device.copy(found.ctypes.data, y.address, y.nbytes)
            np.testing.assert_array_equal(found, total(COUNT) + SIZE * turn)
        assert WHERE_THEY_LIE in comm.device_path
    device.finish(ctypes.c_void_p(stream))
    x.stream = y.stream = None
    device.destroy(stream)
