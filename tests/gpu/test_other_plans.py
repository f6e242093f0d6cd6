"""Plans of other libraries on a device's memory: NCCL, and a CUDA-aware MPI."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpu.simulated import MANAGED, DeviceArray, Driver, the_driver
from gpu.test_device_arrays import RANK, SIZE, on_device, total, values
from gpu.test_workspaces import COUNT, LAST, new_comm
from mpi.knobs import use
from mpi4py import MPI

import gradred
from gradred import UsageError

pytestmark = pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")


@pytest.fixture
def one_gpu_each(device: Driver) -> Iterator[Driver]:
    if device.devices < SIZE:
        pytest.skip("more ranks than GPUs")
    device.use_in_this_thread(RANK)
    yield device
    device.use_in_this_thread(0)


# ---- NCCL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shm", [True, False], ids=["shared memory", "messages"])
def test_every_kind_of_call(one_gpu_each: Driver, shm: bool) -> None:
    with new_comm(shm=shm) as comm:
        for dtype in ("float32", "float64", "float16", "int32", "int64", "uint8"):
            x, y = on_device(values(COUNT, dtype)), on_device(np.zeros(COUNT, dtype))
            before = one_gpu_each.count("copies")
            gradred.allreduce(x, out=y, comm=comm, plan="nccl")
            assert one_gpu_each.count("copies") == before  # no data pass through the host
            np.testing.assert_array_equal(y.get(), total(COUNT, dtype))
        x, y = on_device(values(COUNT)), on_device(np.zeros(COUNT, "float32"))
        gradred.allreduce(x, out=y, comm=comm, plan="nccl")
        np.testing.assert_array_equal(y.get(), total(COUNT))
        gradred.allreduce(y, out=y, comm=comm, plan="nccl")
        np.testing.assert_array_equal(y.get(), SIZE * total(COUNT))
        mean = gradred.allreduce(on_device(SIZE * values(COUNT)), "avg", comm=comm, plan="nccl")
        np.testing.assert_array_equal(mean.get(), total(COUNT))
        for dtype in ("float64", "float32", "float16"):
            x = on_device(values(COUNT, dtype))
            twice = gradred.allreduce(x, gradred.premul(2.0), comm=comm, plan="nccl")
            np.testing.assert_array_equal(twice.get(), 2 * total(COUNT, dtype))
        most = gradred.allreduce(on_device(values(COUNT)), "max", comm=comm, plan="nccl")
        everyones = [values(COUNT, rank=rank) for rank in range(SIZE)]
        np.testing.assert_array_equal(most.get(), np.max(everyones, axis=0))


def test_by_the_knob(one_gpu_each: Driver) -> None:
    """The setting applies to all calls on arrays on GPUs, and to no others."""
    with new_comm(device_plan="nccl") as comm:
        own = slice(RANK * COUNT, (RANK + 1) * COUNT)
        before = one_gpu_each.count("copies")
        x = on_device(values(COUNT * SIZE))
        block = gradred.reduce_scatter_block(x, comm=comm)
        whole = gradred.allgather(block, comm=comm)
        theirs = gradred.bcast(on_device(values(COUNT, "float16")), root=SIZE - 1, comm=comm)
        made = 6  # copies by which the test makes its own arrays
        assert one_gpu_each.count("copies") - before <= made
        np.testing.assert_array_equal(block.get(), total(COUNT * SIZE)[own])
        np.testing.assert_array_equal(whole.get(), total(COUNT * SIZE))
        np.testing.assert_array_equal(theirs.get(), values(COUNT, "float16", SIZE - 1))
        comm.Reduce_scatter_block(MPI.IN_PLACE, x)
        np.testing.assert_array_equal(x.get()[:COUNT], total(COUNT * SIZE)[own])
        comm.Allreduce(MPI.IN_PLACE, whole)
        np.testing.assert_array_equal(whole.get(), SIZE * total(COUNT * SIZE))
        on_host = values(COUNT)
        comm.Allreduce(MPI.IN_PLACE, on_host)
        np.testing.assert_array_equal(on_host, total(COUNT))


def test_many_in_flight(one_gpu_each: Driver) -> None:
    with new_comm() as comm, new_comm() as other:
        made = []
        for turn in range(8):
            for one in (comm, other):
                x = on_device(values(COUNT + turn))
                made.append((gradred.iallreduce(x, comm=one, plan="nccl"), COUNT + turn))
        for i in np.random.default_rng(RANK).permutation(len(made)):
            request, count = made[i]
            np.testing.assert_array_equal(request.wait().get(), total(count))


def test_in_the_order_of_a_stream(one_gpu_each: Driver) -> None:
    device = one_gpu_each
    with new_comm() as comm:
        gradred.allreduce(on_device(values(COUNT)), comm=comm, plan="nccl")
        stream, other = device.stream(), device.stream()
        device.set("most_delay", 5_000_000)
        for turn in range(5):
            x = DeviceArray(device, values(COUNT + turn), stream=stream)
            y = DeviceArray(device, np.zeros(COUNT + turn, "float32"), stream=stream)
            gradred.allreduce(x, out=y, comm=comm, plan="nccl", stream=stream)
            request = gradred.iallreduce(y, comm=comm, plan="nccl", stream=stream)
            z = request.wait_stream(other)
            found = np.empty(COUNT + turn, "float32")
            device.copy(found.ctypes.data, z.address, found.nbytes, other)
            device.must("cuStreamSynchronize", ctypes.c_void_p(other))
            np.testing.assert_array_equal(found, SIZE * total(COUNT + turn))
        device.destroy(stream)
        device.destroy(other)


@pytest.mark.parametrize("plan", ["nccl", "one_shot"])
def test_arrays_of_calls_in_a_stream_live_until_it_has_passed_them(
    one_gpu_each: Driver, plan: str
) -> None:
    """The request has not ended before, and its wait has not returned."""
    device, stream = one_gpu_each, one_gpu_each.stream()
    with new_comm() as comm:
        x, y = on_device(values(COUNT)), on_device(np.zeros(COUNT, "float32"))
        gradred.allreduce(x, out=y, comm=comm, plan=plan, stream=stream)
        device.must("cuStreamSynchronize", ctypes.c_void_p(stream))
        device.set("least_delay", 30_000_000)
        gradred.allreduce(x, out=y, comm=comm, plan=plan, stream=stream)
        gone, alive = weakref.ref(x), x.address
        del x
        gc.collect()
        assert alive
        assert gone() is not None
        request = gradred.iallreduce(y, out=y, comm=comm, plan=plan, stream=stream)
        device.set("least_delay", 0)
        assert not request.done()
        request.wait()
        np.testing.assert_array_equal(y.get(), SIZE * total(COUNT))
        gradred.iallreduce(y, comm=comm).wait()  # releases what has ended
        gradred.iallreduce(y, comm=comm).wait()
        gc.collect()
        assert gone() is None
    device.destroy(stream)


def test_first_call_of_a_communicator(one_gpu_each: Driver) -> None:
    """With a stream, and as a persistent call."""
    stream = one_gpu_each.stream()
    x = DeviceArray(one_gpu_each, values(COUNT), stream=stream)
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    y = gradred.allreduce(x, comm=comm, plan="nccl", stream=stream)
    one_gpu_each.must("cuStreamSynchronize", ctypes.c_void_p(stream))
    np.testing.assert_array_equal(y.get(), total(COUNT))
    comm.Free()
    one_gpu_each.destroy(stream)


def test_calls_that_are_made_again_and_many_at_once(one_gpu_each: Driver) -> None:
    with new_comm(device_plan="nccl") as comm:
        x, y = on_device(values(COUNT)), on_device(np.zeros(COUNT, "float32"))
        call = comm.Allreduce_init(x, y)
        for turn in range(1, 4):
            content = turn * values(COUNT)
            one_gpu_each.copy(x.address, content.ctypes.data, x.nbytes)
            call()
            np.testing.assert_array_equal(y.get(), turn * total(COUNT))
            call.Start()
            call.Wait()
            np.testing.assert_array_equal(y.get(), turn * total(COUNT))
        call.Free()
        arrays = [on_device(values(count)) for count in (10, COUNT, 1000, 2 * COUNT)]
        for made in (
            gradred.allreduce_many(arrays, comm=comm),
            gradred.iallreduce_many(arrays, comm=comm).wait(),
        ):
            for one, of in zip(made, arrays, strict=True):
                np.testing.assert_array_equal(one.get(), total(of.shape[0]))


@pytest.mark.parametrize("shm", [True, False], ids=["shared memory", "messages"])
def test_persistent_calls_start_in_any_order(one_gpu_each: Driver, shm: bool) -> None:
    with new_comm(device_plan="nccl", shm=shm) as comm:
        arrays = [
            (on_device(k * values(COUNT)), on_device(np.zeros(COUNT, "float32"))) for k in (1, 2)
        ]
        requests = [comm.Allreduce_init(x, y) for x, y in arrays]
        for turn in range(3):
            for request in requests if (RANK + turn) % 2 else requests[::-1]:
                request.Start()
            for request in requests:
                request.Wait()
            for k, (_, y) in zip((1, 2), arrays, strict=True):
                np.testing.assert_array_equal(y.get(), k * total(COUNT))
        for request in requests:
            request.Free()


def test_captured_in_a_graph(one_gpu_each: Driver) -> None:
    device = one_gpu_each
    with new_comm() as comm:
        x = on_device(values(COUNT))
        gradred.allreduce(x, comm=comm, plan="nccl")  # the ranks connect
        stream = device.stream()
        graph, handle = ctypes.c_void_p(), ctypes.c_void_p(stream)
        y = on_device(np.zeros(COUNT, "float32"))
        device.must("cuStreamBeginCapture_v2", handle, 0)
        gradred.allreduce(x, out=y, comm=comm, plan="nccl", stream=stream)
        device.must("cuStreamEndCapture", handle, ctypes.byref(graph))
        assert not y.get().any()
        for factor in range(1, 4):
            content = factor * values(COUNT)
            device.copy(x.address, content.ctypes.data, x.nbytes)
            device.must("cuGraphLaunch", graph, handle)
            device.must("cuStreamSynchronize", handle)
            np.testing.assert_array_equal(y.get(), factor * total(COUNT))
        device.destroy(stream)


def test_ranks_that_share_a_gpu_are_refused_and_the_communicator_goes_on(device: Driver) -> None:
    with new_comm() as comm:
        x = on_device(values(COUNT))
        for _ in range(2):
            with pytest.raises(UsageError, match=r"are on one GPU, and NCCL 2\.27\.7 takes"):
                gradred.allreduce(x, comm=comm, plan="nccl")
        np.testing.assert_array_equal(gradred.allreduce(x, comm=comm).get(), total(COUNT))


def test_what_it_cannot_do(one_gpu_each: Driver) -> None:
    with new_comm() as comm:
        with pytest.raises(UsageError, match="lie in the host's"):
            gradred.allreduce(values(COUNT), comm=comm, plan="nccl")
        with pytest.raises(UsageError, match="NCCL has no int16"):
            gradred.allreduce(on_device(values(COUNT, "int16")), comm=comm, plan="nccl")
        with pytest.raises(UsageError, match="NCCL has no operation 'bxor'"):
            gradred.allreduce(on_device(values(COUNT, "int32")), "bxor", comm=comm, plan="nccl")
        x = on_device(values(COUNT, "int32"))
        with pytest.raises(UsageError, match="by whole numbers alone"):
            gradred.allreduce(x, gradred.premul(0.5), comm=comm, plan="nccl")
        mine = values(COUNT) if LAST else on_device(values(COUNT))
        with pytest.raises(UsageError, match="lie in the host's"):
            gradred.allreduce(mine, comm=comm, plan="nccl")
        found = gradred.allreduce(on_device(values(COUNT)), comm=comm, plan="nccl")
        np.testing.assert_array_equal(found.get(), total(COUNT))


def test_ranks_that_ask_for_different_calls(one_gpu_each: Driver) -> None:
    """Failures before the ranks connect, and after."""
    with new_comm() as comm:
        for _ in range(2):
            x = on_device(values(COUNT + LAST))
            with pytest.raises(UsageError):
                gradred.allreduce(x, comm=comm, plan="nccl")
            found = gradred.allreduce(on_device(values(COUNT)), comm=comm, plan="nccl")
            np.testing.assert_array_equal(found.get(), total(COUNT))


# ---- an MPI that is CUDA-aware -------------------------------------------------------------------


def managed(count: int, content: Any = None) -> DeviceArray:
    """The MPI of these tests does not know GPUs, but can read managed memory."""
    return DeviceArray(the_driver(), values(count) if content is None else content, how=MANAGED)


@pytest.fixture
def aware(device: Driver) -> Iterator[Driver]:
    use(cuda_aware_mpi=True)
    yield device
    use()


def test_mpi_gets_addresses_on_the_device(aware: Driver) -> None:
    with new_comm() as comm:
        use(cuda_aware_mpi=True)
        x, y = managed(COUNT), managed(COUNT)
        before = aware.count("copies")
        gradred.allreduce(x, out=y, comm=comm, plan="mpi")
        gradred.allreduce(x, out=x, comm=comm, plan="mpi")
        gradred.iallreduce(y, out=x, comm=comm, plan="mpi").wait()
        assert aware.count("copies") == before
        np.testing.assert_array_equal(x.get(), SIZE * total(COUNT))
        np.testing.assert_array_equal(y.get(), total(COUNT))


def test_mpi_waits_for_the_program(aware: Driver) -> None:
    with new_comm() as comm:
        use(cuda_aware_mpi=True)
        aware.set("most_delay", 5_000_000)
        for turn in range(5):
            stream = aware.stream()
            x = DeviceArray(aware, values(COUNT + turn), how=MANAGED, stream=stream)
            y = managed(COUNT + turn)
            gradred.allreduce(x, out=y, comm=comm, plan="mpi")
            np.testing.assert_array_equal(y.get(), total(COUNT + turn))
            aware.destroy(stream)


def test_what_gradred_itself_does_is_done_on_the_host(aware: Driver) -> None:
    with new_comm() as comm:
        use(cuda_aware_mpi=True)
        x = on_device(SIZE * values(COUNT))  # device memory that the host cannot touch
        mean = gradred.allreduce(x, "avg", comm=comm, plan="mpi")
        np.testing.assert_array_equal(mean.get(), total(COUNT))
        twice = gradred.allreduce(x, gradred.premul(2.0), comm=comm, plan="mpi")
        np.testing.assert_array_equal(twice.get(), 2 * SIZE * total(COUNT))


def test_an_mpi_that_knows_no_gpu_gets_host_memory(device: Driver) -> None:
    with new_comm() as comm:
        x = on_device(values(COUNT))
        found = gradred.allreduce(x, comm=comm, plan="mpi")
        np.testing.assert_array_equal(found.get(), total(COUNT))
