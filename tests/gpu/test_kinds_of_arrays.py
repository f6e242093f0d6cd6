"""Device arrays by each protocol, and arrays that are refused, on the simulated driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from dlpack_tensor import tensor_in
from gpu.simulated import DeviceArray, Driver
from mpi.knobs import use
from mpi4py import MPI

import gradred
from gradred import UsageError
from gradred.buffers import dlpack
from gradred.element_types import ELEMENT_TYPES, numpy_dtype

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
TOTAL = SIZE * (SIZE + 1) // 2


@pytest.fixture(scope="module", params=["shared memory", "messages"])
def comm(request: pytest.FixtureRequest) -> Iterator[gradred.Comm]:
    """A communicator after its first call."""
    made = gradred.Comm(MPI.COMM_WORLD.Dup())
    use(shm=request.param == "shared memory")
    made.Allreduce(MPI.IN_PLACE, np.zeros(1))
    use()
    yield made
    made.Free()


class OfDlpack:
    """An array that supports only DLPack, and whose work is in its own stream."""

    def __init__(self, array: DeviceArray, code: int | None = None) -> None:
        self.array, self.code = array, code  # the DLPack code of a type that NumPy lacks
        self.pattern = np.empty(array.shape, array.dtype)  # its capsule has shape and type

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, 0

    def __dlpack__(self, stream: int) -> Any:
        assert stream == dlpack.LEGACY_STREAM
        if self.array.stream is not None:  # a real library would wait by an event
            self.array.driver.must("cuStreamSynchronize", ctypes.c_void_p(self.array.stream))
        capsule = self.pattern.__dlpack__()
        tensor = tensor_in(capsule)
        tensor.device, tensor.data = dlpack.CUDA, self.array.address
        if self.code is not None:
            tensor.code = self.code
        return capsule


class Described:
    """An array whose interface reports other values."""

    def __init__(self, array: DeviceArray, **said: Any) -> None:
        self.array, self.said = array, said

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.array.__cuda_array_interface__ | self.said


def ramp(count: int) -> npt.NDArray[Any]:
    return (np.arange(count) % 5).astype("float32")


CALLS: dict[str, Callable[[gradred.Comm, Any, Any], object]] = {
    "allreduce": lambda comm, x, y: gradred.allreduce(x, out=y, comm=comm),
    "iallreduce": lambda comm, x, y: gradred.iallreduce(x, out=y, comm=comm).wait(),
    "allreduce_many": lambda comm, x, y: gradred.allreduce_many([x], out=[y], comm=comm),
    "stream": lambda comm, x, y: gradred.iallreduce(x, out=y, comm=comm, stream=1).wait(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("count", [3, 50_001])
def test_arrays_by_dlpack(
    device: Driver, comm: gradred.Comm, call: Callable[..., object], count: int
) -> None:
    device.set("least_delay", 3_000_000)
    x = DeviceArray(device, ramp(count) * (RANK + 1), stream=device.stream())
    device.set("least_delay", 0)
    y = DeviceArray(device, np.full(count, 99, "float32"))
    call(comm, OfDlpack(x), OfDlpack(y))
    np.testing.assert_array_equal(y.get(), ramp(count) * TOTAL)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_8_bits(device: Driver, comm: gradred.Comm, name: str) -> None:
    """GPU kernels compute these, with the same bits as the host."""
    pytest.importorskip("ml_dtypes")
    dtype, count = numpy_dtype(name), 200_001
    values = [(np.arange(count) % (5 + rank)).astype(dtype) for rank in range(SIZE)]
    x, y = (DeviceArray(device, each.view("u1")) for each in (values[RANK], values[0] * 0))
    code = ELEMENT_TYPES[name].dlpack
    gradred.allreduce(OfDlpack(x, code), out=OfDlpack(y, code), comm=comm)
    on_host = gradred.allreduce(values[RANK], comm=comm)
    np.testing.assert_array_equal(y.get(), on_host.view("u1"))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_array_that_is_read_only_is_an_input_and_no_result(
    device: Driver, comm: gradred.Comm, call: Callable[..., object]
) -> None:
    x, y = (DeviceArray(device, ramp(100) * (RANK + 1)) for _ in range(2))
    call(comm, Described(x, data=(x.address, True)), y)
    np.testing.assert_array_equal(y.get(), ramp(100) * TOTAL)
    with pytest.raises(UsageError, match="read-only"):
        call(comm, x, Described(y, data=(y.address, True)))
    call(comm, x, y)


@pytest.mark.parametrize("of", ["input", "result"])
def test_array_with_gaps_is_refused(device: Driver, comm: gradred.Comm, of: str) -> None:
    x, y = (DeviceArray(device, ramp(100)) for _ in range(2))
    gaps = {"shape": (50,), "strides": (8,)}
    dense = {"shape": (50,)}
    sent = Described(x, **(gaps if of == "input" else dense))
    taken = Described(y, **(gaps if of == "result" else dense))
    with pytest.raises(UsageError, match="not dense"):
        gradred.allreduce(sent, out=taken, comm=comm)
    with pytest.raises(UsageError):
        comm.Allreduce(sent, taken)
    gradred.allreduce(x, out=y, comm=comm)
    np.testing.assert_array_equal(y.get(), ramp(100) * SIZE)


def test_axes_may_be_in_any_order(device: Driver, comm: gradred.Comm) -> None:
    x, y = (DeviceArray(device, ramp(60) * (RANK + 1)) for _ in range(2))
    turned = {"shape": (3, 4, 5), "strides": (4, 12, 48)}
    gradred.allreduce(Described(x, **turned), out=Described(y, **turned), comm=comm)
    np.testing.assert_array_equal(y.get(), ramp(60) * TOTAL)
    with pytest.raises(UsageError, match="axes in the order"):
        gradred.allreduce(Described(x, **turned), out=Described(y, shape=(3, 4, 5)), comm=comm)


def test_mask_and_nonsense_are_refused(device: Driver, comm: gradred.Comm) -> None:
    x = DeviceArray(device, ramp(10))
    with pytest.raises(UsageError, match="has a mask"):
        gradred.allreduce(Described(x, mask=x), comm=comm)
    with pytest.raises(UsageError, match="makes no sense"):
        gradred.allreduce(Described(x, typestr="nothing"), comm=comm)
    assert gradred.allreduce(np.ones(1), comm=comm) == SIZE


@pytest.mark.parametrize("count", [3, 50_001])
def test_addresses_alone(device: Driver, comm: gradred.Comm, count: int) -> None:
    """Programs for a CUDA-aware MPI pass addresses; the driver reports which memory they are in."""
    x = DeviceArray(device, ramp(count) * (RANK + 1))
    y = DeviceArray(device, np.full(count, 99, "float32"))
    sent, taken = (MPI.buffer.fromaddress(each.address, each.nbytes) for each in (x, y))
    comm.Allreduce([sent, MPI.FLOAT], [taken, MPI.FLOAT])
    np.testing.assert_array_equal(y.get(), ramp(count) * TOTAL)
    comm.Iallreduce([sent, count, MPI.FLOAT], [taken, count, MPI.FLOAT]).Wait()
    np.testing.assert_array_equal(y.get(), ramp(count) * TOTAL)
    floats = (ctypes.c_float * count).from_address(x.address)
    gradred.allreduce(floats, "max", out=floats, comm=comm)
    np.testing.assert_array_equal(x.get(), ramp(count) * SIZE)
    comm.Bcast([sent, MPI.BYTE], root=0)
    with pytest.raises(gradred.DeviceError, match="given host memory alone"):
        comm.Allreduce(MPI.IN_PLACE, [sent, count // 2, MPI.FLOAT_INT], MPI.MINLOC)


def test_addresses_of_freed_memory(device: Driver, comm: gradred.Comm) -> None:
    x = DeviceArray(device, ramp(5000))
    gone = MPI.buffer.fromaddress(x.address, x.nbytes)
    x.free()
    with pytest.raises(gradred.DeviceError, match="no memory of this process"):
        comm.Allreduce(MPI.IN_PLACE, [gone, MPI.FLOAT])
    assert gradred.allreduce(np.ones(1), comm=comm) == SIZE
