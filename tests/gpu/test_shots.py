"""Plans one_shot and two_shot: kernels that wait for each other, each on its own GPU."""

from __future__ import annotations

import ctypes
import gc
import time

import numpy as np
import pytest
from gpu.simulated import DeviceArray, Driver
from gpu.test_device_arrays import RANK, SIZE, on_device, total, values
from gpu.test_other_plans import one_gpu_each
from gpu.test_workspaces import new_comm

import gradred
from gradred import UsageError

pytestmark = pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
__all__ = ["one_gpu_each"]  # a fixture

PLANS = ["one_shot", "two_shot"]
COUNTS = (1, 7, 1009, 8192, 70_001)  # one block, several blocks, and a last block that is cut off
SEVERAL_TURNS = {"one_shot": 140_000, "two_shot": 2_100_000}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "uint8"])
def test_types_and_lengths(one_gpu_each: Driver, plan: str, dtype: str) -> None:
    with new_comm() as comm:
        for count in (*COUNTS, *([SEVERAL_TURNS[plan]] if dtype == "float32" else [])):
            x, y = on_device(values(count, dtype)), on_device(np.zeros_like(values(count, dtype)))
            before = one_gpu_each.count("copies")
            gradred.allreduce(x, out=y, comm=comm, plan=plan)
            if count != COUNTS[0]:  # the first call polls until its peers are connected
                assert one_gpu_each.count("copies") == before
            np.testing.assert_array_equal(y.get(), total(count, dtype))
            np.testing.assert_array_equal(x.get(), values(count, dtype))
            gradred.allreduce(x, out=x, comm=comm, plan=plan)
            np.testing.assert_array_equal(x.get(), total(count, dtype))
        assert f"plan {plan}: a kernel that waits for its peers on CUDA device" in comm.device_path


@pytest.mark.parametrize("plan", PLANS)
def test_operations(one_gpu_each: Driver, plan: str) -> None:
    everyones = [values(1009, rank=rank) for rank in range(SIZE)]
    with new_comm() as comm:
        for op, expected in (
            ("max", np.max(everyones, axis=0)),
            ("min", np.min(everyones, axis=0)),
            ("prod", np.prod(everyones, axis=0)),
            (gradred.premul(2.0), 2 * total(1009)),
        ):
            found = gradred.allreduce(on_device(values(1009)), op, comm=comm, plan=plan)
            np.testing.assert_array_equal(found.get(), expected)
        mean = gradred.allreduce(on_device(SIZE * values(1009)), "avg", comm=comm, plan=plan)
        np.testing.assert_array_equal(mean.get(), total(1009))
        with pytest.raises(UsageError, match=f"plan '{plan}' cannot serve this call: there is no"):
            gradred.allreduce(on_device(values(10, "int32")), "band", comm=comm, plan=plan)


class Part:
    """1000 elements of an array, from the second one on."""

    def __init__(self, x: DeviceArray, first: int) -> None:
        whole = x.__cuda_array_interface__
        place = x.address + first * np.dtype(whole["typestr"]).itemsize
        self.__cuda_array_interface__ = {**whole, "data": (place, False), "shape": (1000,)}


@pytest.mark.parametrize("plan", PLANS)
def test_arrays_that_begin_anywhere(one_gpu_each: Driver, plan: str) -> None:
    with new_comm() as comm:
        for first in range(4):
            x, y = on_device(values(1003, "float16")), on_device(np.zeros(1003, "float16"))
            gradred.allreduce(Part(x, first), out=Part(y, 3 - first), comm=comm, plan=plan)
            count = 1003 - 3
            np.testing.assert_array_equal(
                y.get()[3 - first :][:count], total(1003, "float16")[first:][:count]
            )
            assert not y.get()[: 3 - first].any()
            assert not y.get()[3 - first + count :].any()


@pytest.mark.parametrize("plan", PLANS)
def test_slots_are_not_written_while_a_late_rank_reads_them(
    one_gpu_each: Driver, plan: str
) -> None:
    stream = one_gpu_each.stream()
    with new_comm() as comm:
        x = [DeviceArray(one_gpu_each, turn + values(900), stream=stream) for turn in range(40)]
        y = [gradred.allreduce(one, comm=comm, plan=plan, stream=stream) for one in x]
        one_gpu_each.must("cuStreamSynchronize", ctypes.c_void_p(stream))
        for turn, one in enumerate(y):
            np.testing.assert_array_equal(one.get(), SIZE * turn + total(900))
    one_gpu_each.destroy(stream)


@pytest.mark.parametrize("plan", PLANS)
def test_many_in_flight_on_several_streams(one_gpu_each: Driver, plan: str) -> None:
    device = one_gpu_each
    streams = [device.stream() for _ in range(3)]
    device.set("most_delay", 2_000_000)
    with new_comm() as comm:
        made = []
        for turn in range(12):
            stream = streams[turn % 3]
            x = DeviceArray(device, values(3000 + turn), stream=stream)
            in_order = {} if turn % 4 == 3 else {"stream": stream}
            made.append((gradred.iallreduce(x, comm=comm, plan=plan, **in_order), x, 3000 + turn))
        for request, _, count in reversed(made):
            result = request.wait()
            for stream in streams:
                device.must("cuStreamSynchronize", ctypes.c_void_p(stream))
            np.testing.assert_array_equal(result.get(), total(count))
    device.set("most_delay", 0)
    for stream in streams:
        device.destroy(stream)


@pytest.mark.parametrize("plan", PLANS)
def test_ranks_connect_while_a_stream_waits_for_peers(one_gpu_each: Driver, plan: str) -> None:
    """Opening peers' memory may block the driver until gradred lets the stream continue."""
    device = one_gpu_each
    stream = device.stream()
    handle = ctypes.c_void_p(stream)
    with new_comm() as first, new_comm() as second:
        x, y = on_device(values(1009)), on_device(values(1009))
        gradred.allreduce(y, out=y, comm=second, stream=stream)
        device.must("cuStreamSynchronize", handle)
        y = on_device(values(1009))
        gc.collect()
        device.set("synchronises", 1)
        try:
            if RANK != 0:
                time.sleep(0.1)
            request = gradred.iallreduce(x, out=x, comm=first, plan=plan)
            gradred.allreduce(y, out=y, comm=second, stream=stream)
            device.must("cuStreamSynchronize", handle)
            request.wait()
        finally:
            device.set("synchronises", 0)
        for found in (x, y):
            np.testing.assert_array_equal(found.get(), total(1009))
    device.destroy(stream)


@pytest.mark.parametrize("plan", PLANS)
def test_ranks_connect_in_another_order_than_calls_of_streams(
    one_gpu_each: Driver, plan: str
) -> None:
    """Rank 0's call in a stream's order waits for the others, which wait for it to connect."""
    device = one_gpu_each
    stream = device.stream()
    with new_comm() as first, new_comm() as second:
        x, y = on_device(values(1009)), on_device(values(1009))

        def in_order() -> None:
            gradred.allreduce(y, out=y, comm=second, stream=stream)

        if RANK == 0:
            in_order()
        gradred.allreduce(x, out=x, comm=first, plan=plan)
        if RANK != 0:
            in_order()
        device.must("cuStreamSynchronize", ctypes.c_void_p(stream))
        for found in (x, y):
            np.testing.assert_array_equal(found.get(), total(1009))
    device.destroy(stream)


def test_capture_in_a_graph_is_refused(one_gpu_each: Driver) -> None:
    device = one_gpu_each
    with new_comm() as comm:
        x, y = on_device(values(1000)), on_device(np.zeros(1000, "float32"))
        stream = device.stream()
        graph, handle = ctypes.c_void_p(), ctypes.c_void_p(stream)
        device.must("cuStreamBeginCapture_v2", handle, 0)
        with pytest.raises(UsageError, match="is being captured in a CUDA graph"):
            gradred.allreduce(x, out=y, comm=comm, plan="one_shot", stream=stream)
        device.must("cuStreamEndCapture", handle, ctypes.byref(graph))
        gradred.allreduce(x, out=y, comm=comm, plan="one_shot", stream=stream)
        device.must("cuStreamSynchronize", handle)
        np.testing.assert_array_equal(y.get(), total(1000))
        device.destroy(stream)


def test_memory_that_a_rank_cannot_reach_is_an_error_on_all(one_gpu_each: Driver) -> None:
    with new_comm() as comm:
        if RANK == 0:
            one_gpu_each.fail("cuIpcOpenMemHandle", 1)
        try:
            for _ in range(2):
                with pytest.raises(
                    UsageError, match=r"plan 'one_shot' cannot serve this comm.*: rank 0"
                ):
                    gradred.allreduce(on_device(values(10)), comm=comm, plan="one_shot")
        finally:
            one_gpu_each.fail("cuIpcOpenMemHandle", 0)
        x = on_device(values(1000))
        np.testing.assert_array_equal(gradred.allreduce(x, comm=comm).get(), total(1000))


def test_ranks_on_one_gpu_are_refused(device: Driver) -> None:
    with new_comm() as comm:
        for _ in range(2):
            with pytest.raises(UsageError, match="are on one GPU, and a kernel that waits for its"):
                gradred.allreduce(on_device(values(10)), comm=comm, plan="one_shot")
        x = on_device(values(1000))
        np.testing.assert_array_equal(gradred.allreduce(x, comm=comm).get(), total(1000))


def test_other_calls_are_refused(one_gpu_each: Driver) -> None:
    with new_comm() as comm, pytest.raises(UsageError, match="one_shot"):
        gradred.bcast(on_device(values(10)), comm=comm, plan="one_shot")
    with new_comm() as comm, pytest.raises(UsageError, match="this rank's lie in the host's"):
        gradred.allreduce(values(10), comm=comm, plan="one_shot")
