"""Calls whose data pass from device to device, and calls where that is not possible."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from gpu.simulated import Driver
from gpu.test_device_arrays import RANK, SIZE, host, on_device, total, values
from mpi.knobs import use
from mpi4py import MPI

import gradred

pytestmark = pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
COUNT = 70_001
LAST = RANK == SIZE - 1


@contextmanager
def new_comm(**knobs: Any) -> Iterator[gradred.Comm]:
    made = gradred.Comm(MPI.COMM_WORLD.Dup())
    use(**knobs)
    made.Allreduce(MPI.IN_PLACE, np.zeros(1))
    use()
    yield made
    made.Free()


def everyones(count: int) -> int:
    return int(MPI.COMM_WORLD.allreduce(count))


def check(comm: gradred.Comm, count: int = COUNT, dtype: str = "float32") -> None:
    x = on_device(values(count, dtype))
    np.testing.assert_array_equal(gradred.allreduce(x, comm=comm).get(), total(count, dtype))


def test_one_rank_reduces_where_ranks_share_a_device(device: Driver) -> None:
    with new_comm() as comm:
        assert comm.device_path == "no such call yet"
        check(comm, 1000)
        assert comm.device_path == "host memory: calls so far were short"
        check(comm)
        before = device.count("launches"), device.count("pinned")
        check(comm)
        launched = device.count("launches") - before[0]
        assert launched == (1 if RANK == 0 else 0)
        assert comm.device_path == "devices: all ranks' arrays are on one"
        assert device.count("pinned") == before[1]


def test_short_copies_wait_for_no_turns_on_a_device(device: Driver) -> None:
    """Without MPS only one process computes at a time."""
    device.set("mps", 0)
    try:
        with new_comm() as comm:
            check(comm)  # this call opens the workspaces
            for count, on_devices in ((COUNT, False), (1 << 19, True)):
                before = device.count("launches")
                check(comm, count)
                assert device.count("launches") - before == (on_devices and RANK == 0)
            assert "goes through host memory, since" in comm.device_path
            block = gradred.reduce_scatter_block(on_device(values(COUNT * SIZE)), comm=comm)
            own = slice(RANK * COUNT, (RANK + 1) * COUNT)
            np.testing.assert_array_equal(block.get(), total(COUNT * SIZE)[own])
    finally:
        device.set("mps", 1)


@pytest.mark.parametrize("ipc_bytes", [4096, 200_000, 1 << 25])
def test_each_rank_reduces_a_share_where_each_has_a_device(device: Driver, ipc_bytes: int) -> None:
    device.use_in_this_thread(RANK % device.devices)
    try:
        with new_comm(ipc_bytes=ipc_bytes) as comm:
            check(comm)
            before = device.count("launches")
            check(comm)
            assert device.count("launches") > before, comm.device_path
            assert comm.device_path == "devices: the ranks' arrays are on several"
            for dtype in ("float16", "float64", "uint8"):
                check(comm, dtype=dtype)
            x = on_device(values(COUNT * SIZE, "int32"))
            block = gradred.reduce_scatter_block(x, "max", comm=comm).get()
            own = slice(RANK * COUNT, (RANK + 1) * COUNT)
            all_of_it = [values(COUNT * SIZE, "int32", rank)[own] for rank in range(SIZE)]
            np.testing.assert_array_equal(block, np.max(all_of_it, axis=0))
    finally:
        device.use_in_this_thread(0)


def test_memory_of_a_peer_that_two_devices_open(device: Driver) -> None:
    """Workspaces of several communicators may be parts of one allocation."""
    try:
        with ExitStack() as kept:
            for step in (1, 2):
                device.use_in_this_thread(RANK * step % device.devices)
                for _ in range(4):
                    comm = kept.enter_context(new_comm(ipc_bytes=4096))
                    check(comm)
                    check(comm)
                    assert comm.device_path.startswith("devices: "), comm.device_path
    finally:
        device.use_in_this_thread(0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
@pytest.mark.parametrize("mixed", [False, True])
def test_factor_is_put_on_the_input(device: Driver, dtype: str, mixed: bool) -> None:
    """A kernel computes, or the host if the arrays of some ranks lie there."""
    own = slice(RANK * COUNT, (RANK + 1) * COUNT)
    given = values(COUNT * SIZE, dtype)
    x = given if mixed and RANK == 0 else on_device(given)
    with new_comm() as comm:
        for turn in range(2):
            block = gradred.reduce_scatter_block(x, gradred.premul(2.0), comm=comm)
            wanted = 2 * total(COUNT * SIZE, dtype)[own]
            np.testing.assert_array_equal(host(block), wanted, err_msg=str(turn))
        assert comm.device_path.startswith(
            "no" if mixed and RANK == 0 else "host" if mixed else "dev"
        )


# ---- where it is not possible ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        ("cuIpcGetMemHandle", "float32"),
        ("cuIpcOpenMemHandle", "float32"),
        ("cuModuleLoadData", "int64"),
    ],
)
def test_calls_of_all_ranks_go_through_host_memory_where_one_rank_is_refused(
    device: Driver, function: str, dtype: str
) -> None:
    # Long enough that no memory of an earlier one is reused.
    with new_comm(ipc_bytes=(150 if function == "cuIpcGetMemHandle" else 32) << 20) as comm:
        before = everyones(device.count("launches"))
        if LAST:
            device.fail(function, 1)
        try:
            check(comm, dtype=dtype)
        finally:
            device.fail(function, 0)
        if function != "cuModuleLoadData":  # this failure is remembered, on all ranks
            check(comm, dtype=dtype)
        assert everyones(device.count("launches")) == before
        assert comm.device_path.startswith("host memory: ")
        if function.startswith("cuIpcOpen"):
            assert f"rank {SIZE - 1}" in comm.device_path
            assert function in comm.device_path


def test_device_without_memory_for_a_workspace(device: Driver) -> None:
    x, y = on_device(values(COUNT)), on_device(np.zeros(COUNT, "float32"))
    with new_comm(ipc_bytes=200 << 20) as comm:
        if LAST:
            device.fail("cuMemAlloc", 2)
        try:
            comm.Allreduce(x, y)
        finally:
            device.fail("cuMemAlloc", 0)
        np.testing.assert_array_equal(y.get(), total(COUNT))
        comm.Allreduce(x, y)
        np.testing.assert_array_equal(y.get(), total(COUNT))


def test_workspaces_that_are_turned_off(device: Driver) -> None:
    with new_comm(ipc_bytes="none") as comm:
        check(comm)
        assert comm.device_path == "host memory: GRADRED_IPC_BYTES is none"


def test_workspaces_of_different_lengths(device: Driver) -> None:
    with new_comm(ipc_bytes=100_000 * (RANK + 1)) as comm:
        check(comm)
        assert comm.device_path.startswith("devices: ")


def test_communicators_that_are_freed_leave_nothing_on_the_device(device: Driver) -> None:
    counts: list[int] = []
    for _ in range(5):
        with new_comm() as comm:
            check(comm)
        gc.collect()
        MPI.COMM_WORLD.Barrier()
        counts.append(device.count("bytes"))
    assert len(set(counts)) == 1, counts


def test_calls_in_flight_on_several_communicators(device: Driver) -> None:
    with new_comm() as one, new_comm(ipc_bytes=50_000) as other:
        made = []
        for turn in range(6):
            for comm in (one, other):
                x = on_device(values(COUNT + turn))
                made.append((gradred.iallreduce(x, comm=comm), COUNT + turn))
        order = np.random.default_rng(RANK).permutation(len(made))
        for i in order:
            request, count = made[i]
            np.testing.assert_array_equal(request.wait().get(), total(count))


def test_arrays_of_another_device_than_the_communicators_go_through_host_memory(
    device: Driver,
) -> None:
    with new_comm() as comm:
        check(comm)
        device.use_in_this_thread(1)
        try:
            before = everyones(device.count("launches"))
            check(comm)
            assert everyones(device.count("launches")) == before
        finally:
            device.use_in_this_thread(0)
        check(comm)
