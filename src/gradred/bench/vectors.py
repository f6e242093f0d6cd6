"""The vectors of a benchmark: NumPy arrays, or arrays of a CUDA device that its driver allocates.

A device vector has the methods of arrays that the benchmark needs, so that the other code treats
both kinds alike. The benchmark acts as the user's program: it loads the driver and makes the CUDA
context, which gradred's calls never do.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from gradred import config
from gradred.bench.options import ACCELERATORS
from gradred.errors import UsageError

_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL: any stream may use the managed memory


class Device:
    """A device of this process with its current context, chosen by the rank's number on its host.

    Raises:
        UsageError: there is no driver, or no device.
    """

    def __init__(
        self, accelerator: str, world: MPI.Intracomm | None, asked: str | None = None
    ) -> None:
        self._how, name = ACCELERATORS[accelerator], str(config.get("libcuda"))
        self._asked = asked or f"-d {accelerator}"
        try:
            self._driver = ctypes.CDLL(name)
        except OSError as error:
            found = f"there is no CUDA driver ({error})"
            raise UsageError(self._asked, found, "Measure host memory, with -d cpu") from None
        self.call("cuInit", 0)
        count, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        self.ordinal = 0
        if world is not None:
            host = world.Split_type(MPI.COMM_TYPE_SHARED)
            self.ordinal = host.rank % max(count.value, 1)
            host.Free()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.ordinal)
        self.call("cuCtxSetCurrent", context)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the driver; raises UsageError if it fails."""
        code = getattr(self._driver, function)(*arguments)
        if code != 0:
            found = f"{function} returned the code {code}"
            raise UsageError(self._asked, found, "See what nvidia-smi says")

    def name(self) -> str:
        """Return the name that the driver reports."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), self.ordinal)
        return text.value.decode(errors="replace")

    def vector(self, values: NDArray[Any]) -> DeviceVector:
        """Make a vector with these values."""
        address = ctypes.c_uint64()
        more = [_GLOBAL] if self._how == "cuMemAllocManaged" else []
        nbytes = ctypes.c_size_t(max(values.nbytes, 1))
        self.call(self._how, ctypes.byref(address), nbytes, *more)
        made = DeviceVector(self, address.value, len(values), values.dtype)
        made[:] = values
        return made

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between any two addresses; blocks until the copy is done."""
        where = ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes)
        self.call("cuMemcpyAsync", *where, ctypes.c_void_p(0))
        self.call("cuStreamSynchronize", ctypes.c_void_p(0))


class DeviceVector:
    """A contiguous vector; its memory is freed when the process ends."""

    def __init__(self, device: Device, address: int, count: int, dtype: np.dtype[Any]) -> None:
        self._device, self._address, self._count, self.dtype = device, address, count, dtype

    def __len__(self) -> int:
        return self._count

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self._count,),
            "typestr": self.dtype.str,
            "data": (self._address, False),
            "strides": None,
            "version": 3,
        }

    def __getitem__(self, part: slice) -> DeviceVector:
        begin, end, _ = part.indices(self._count)
        address = self._address + begin * self.dtype.itemsize
        return DeviceVector(self._device, address, end - begin, self.dtype)

    def __setitem__(self, part: slice, values: NDArray[Any] | DeviceVector) -> None:
        target = self[part]
        source = values
        if not isinstance(source, DeviceVector):
            source = np.ascontiguousarray(source, self.dtype)
        at = source._address if isinstance(source, DeviceVector) else source.ctypes.data
        self._device.copy(target._address, at, len(target) * self.dtype.itemsize)

    def fill(self, value: Any) -> None:
        """Set all elements."""
        self[:] = np.full(self._count, value, self.dtype)

    def get(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return a copy in host memory."""
        found = np.empty(self._count, self.dtype) if out is None else out
        self._device.copy(found.ctypes.data, self._address, found.nbytes)
        return found


Vector = NDArray[Any] | DeviceVector


def in_host_memory(vector: Vector) -> NDArray[Any]:
    """Return the values of a vector of either kind."""
    return vector.get() if isinstance(vector, DeviceVector) else vector
