"""Numba's real CUDA arrays and streams, over the simulated driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpu.simulated import Driver
from gpu.test_device_arrays import SIZE, total, values
from gpu.test_workspaces import COUNT, new_comm
from mpi4py import MPI

import gradred

cuda: Any = pytest.importorskip("numba.cuda")


@pytest.fixture
def comm(device: Driver) -> Iterator[gradred.Comm]:
    with new_comm() as made:
        yield made


def sums(x: Any, count: int, dtype: str = "float32") -> None:
    found = x.copy_to_host()
    cuda.synchronize()  # the copy of an array that names a stream is made in that stream
    np.testing.assert_array_equal(found, total(count, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16"])
@pytest.mark.parametrize("count", [1, 1009, COUNT])
def test_calls(comm: gradred.Comm, dtype: str, count: int) -> None:
    x = cuda.to_device(values(count, dtype))
    y = cuda.device_array_like(x)
    comm.Allreduce(x, y)
    sums(y, count, dtype)
    comm.Iallreduce(x, y).Wait()
    sums(y, count, dtype)
    for made in (
        gradred.allreduce(x, comm=comm),
        gradred.iallreduce(x, comm=comm).wait(),
        gradred.allreduce_many([x], comm=comm)[0],
    ):
        assert type(made) is type(x)
        sums(made, count, dtype)
    gathered = gradred.allgather(x, comm=comm).copy_to_host()
    everyones = [values(count, dtype, rank) for rank in range(SIZE)]
    np.testing.assert_array_equal(gathered, np.concatenate(everyones))
    theirs = gradred.bcast(x, root=SIZE - 1, comm=comm).copy_to_host()
    np.testing.assert_array_equal(theirs, values(count, dtype, SIZE - 1))
    comm.Allreduce(MPI.IN_PLACE, x)
    sums(x, count, dtype)


def test_views_and_orders_of_axes(comm: gradred.Comm) -> None:
    x = cuda.to_device(np.asfortranarray(values(60_000).reshape(200, 300)))
    made = gradred.allreduce(x, comm=comm)
    assert made.strides == x.strides
    np.testing.assert_array_equal(made.copy_to_host(), total(60_000).reshape(200, 300))
    part = cuda.to_device(values(1000))[100:200]
    np.testing.assert_array_equal(
        gradred.allreduce(part, comm=comm).copy_to_host(), total(1000)[100:200]
    )
    with pytest.raises(gradred.UsageError, match="not dense"):
        gradred.allreduce(cuda.to_device(values(1000))[::2], comm=comm)


def test_streams(device: Driver, comm: gradred.Comm) -> None:
    device.set("most_delay", 5_000_000)
    stream, other = cuda.stream(), cuda.stream()
    for turn in range(4):
        given = cuda.pinned_array(COUNT + turn, "float32")
        given[:] = values(COUNT + turn)
        x = cuda.to_device(given, stream=stream)
        made = gradred.allreduce(x, comm=comm, stream=stream)
        request = gradred.iallreduce(made, comm=comm, stream=stream)
        twice = request.wait_stream(other)
        found = twice.copy_to_host(stream=other)
        other.synchronize()
        np.testing.assert_array_equal(found, SIZE * total(COUNT + turn))


def test_arrays_of_gradreds_memory(comm: gradred.Comm) -> None:
    x = gradred.empty_like(cuda.to_device(values(COUNT)))
    assert type(x) is type(cuda.to_device(values(1)))
    given = values(COUNT)
    x.copy_to_device(given)  # in the stream that the array names, after this call returns
    y = cuda.as_cuda_array(gradred.empty(COUNT, device="cuda"))
    comm.Allreduce(x, y)
    sums(y, COUNT)
    if SIZE > 1:
        assert "stay where they lie" in comm.device_path


def test_a_function_for_arrays_on_both_sides(comm: gradred.Comm) -> None:
    op = gradred.user_op(lambda a, b: a + b)
    for count in (1, 1009, COUNT):
        sums(gradred.allreduce(cuda.to_device(values(count)), op, comm=comm), count)
        host = gradred.allreduce(values(count, "float32"), op, comm=comm)
        np.testing.assert_array_equal(host, total(count, "float32"))


@pytest.mark.parametrize("count", [3, 1009, COUNT])
@pytest.mark.parametrize("kind", ["device", "managed", "mapped"])
def test_work_in_numbas_default_stream_comes_first(
    device: Driver, comm: gradred.Comm, kind: str, count: int
) -> None:
    """Numba's arrays name no stream then."""
    make = {"managed": cuda.managed_array, "mapped": cuda.mapped_array}
    x = make.get(kind, cuda.device_array)(count, "float32")
    given = cuda.pinned_array(count, "float32")
    calls = [gradred.allreduce, lambda x, comm: gradred.iallreduce(x, comm=comm).wait()]
    for turn, call in enumerate(calls):
        given[:] = values(count) + turn
        to, of = (ctypes.c_uint64(address_of(each)) for each in (x, given))
        legacy = ctypes.c_void_p(0)
        device.set("least_delay", 20_000_000)
        device.must("cuMemcpyAsync", to, of, ctypes.c_size_t(given.nbytes), legacy)
        device.set("least_delay", 0)
        made = call(x, comm=comm)
        assert type(made) is type(x)
        found = made.copy_to_host() if kind == "device" else made
        np.testing.assert_array_equal(found, total(count) + SIZE * turn)


def address_of(x: Any) -> int:
    of_device = getattr(x, "__cuda_array_interface__", None)
    return int((of_device or x.__array_interface__)["data"][0])
