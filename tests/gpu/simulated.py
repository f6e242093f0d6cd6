"""Arrays of a simulated GPU: memory of the simulated driver, with the CUDA Array Interface.

The driver is a library that CMake builds beside the tests' extension (csrc/tests/device). It has
memory that the host cannot touch, streams that work late, and freed memory that faults.
"""

from __future__ import annotations

import ctypes
import pathlib
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

LIBRARY = pathlib.Path(__file__).resolve().parents[1] / "libsimulated_cuda.so"
PINNED, POOL, MANAGED = "cuMemHostAlloc", "cuMemAllocAsync", "cuMemAllocManaged"


class Driver:
    """The part of CuPy that uses the driver: loaded and initialised for this process."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(LIBRARY))
        self.must("cuInit", 0)
        count = ctypes.c_int()
        self.must("cuDeviceGetCount", ctypes.byref(count))
        self.devices = count.value
        self.use_in_this_thread()

    def must(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver, and assert that it succeeds."""
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def use_in_this_thread(self, device: int = 0) -> None:
        """Make a device's context current in this thread."""
        context = ctypes.c_void_p()
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.must("cuCtxSetCurrent", context)

    def set(self, name: str, value: int) -> None:
        """Set an option of the driver (simulated_cuda_set): delays, memory, a lost device."""
        self.library.simulated_cuda_set(name.encode(), ctypes.c_long(value))

    def fail(self, function: str, code: int, after: int = 0) -> None:
        """Let a driver function fail with a code; code 0 ends this."""
        self.library.simulated_cuda_fail(function.encode(), code, ctypes.c_long(after))

    def count(self, name: str) -> int:
        """How many bytes, streams or events exist."""
        self.library.simulated_cuda_count.restype = ctypes.c_long
        return int(self.library.simulated_cuda_count(name.encode()))

    def stream(self) -> int:
        """A stream for which the default stream does not wait."""
        made = ctypes.c_void_p()
        self.must("cuStreamCreate", ctypes.byref(made), 1)
        assert made.value is not None
        return made.value

    def destroy(self, stream: int) -> None:
        """Release a stream that is no longer used."""
        self.must("cuStreamSynchronize", ctypes.c_void_p(stream))
        self.must("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def copy(self, target: int, source: int, nbytes: int, stream: int | None = None) -> None:
        """Copy memory; returns immediately if a stream is given."""
        handle = ctypes.c_void_p(stream or 0)
        self.must(
            "cuMemcpyAsync",
            ctypes.c_uint64(target),
            ctypes.c_uint64(source),
            ctypes.c_size_t(nbytes),
            handle,
        )
        if stream is None:
            self.finish(handle)

    def finish(self, stream: ctypes.c_void_p) -> None:
        """Wait for a stream, also while the test captures another one."""
        mode = ctypes.c_int(2)  # capture mode "relaxed"
        self.must("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        self.must("cuStreamSynchronize", stream)
        self.must("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


class DeviceArray:
    """Values in the device's memory; freed with the object.

    Args:
        driver: the driver of the device.
        values: the values that are copied there.
        how: the driver function that allocates the memory.
        stream: the stream in the interface, in which the values arrive later. None: they are there.
    """

    def __init__(
        self,
        driver: Driver,
        values: npt.NDArray[Any],
        *,
        how: str = "cuMemAlloc_v2",
        stream: int | None = None,
    ) -> None:
        self.driver, self.how, self.stream = driver, how, stream
        self.shape, self.dtype = values.shape, values.dtype
        self.source = np.ascontiguousarray(values)  # lives as long as the copy may need it
        address = ctypes.c_uint64()
        more = {POOL: (ctypes.c_void_p(0),), MANAGED: (1,)}.get(how, ())
        self.nbytes = self.source.nbytes
        driver.must(how, ctypes.byref(address), ctypes.c_size_t(max(self.nbytes, 1)), *more)
        self.address = address.value
        driver.copy(self.address, self.source.ctypes.data, self.nbytes, stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": self.stream,
            "version": 3,
        }

    def __array_namespace__(self) -> Any:
        return sys.modules[__name__]

    def part(self, begin: int, end: int) -> Part:
        """A view of some elements, by the same interface."""
        return Part(self, begin, end)

    def get(self) -> npt.NDArray[Any]:
        """The values at this moment, without waiting for any stream of the program."""
        found = np.empty(self.shape, self.dtype)
        self.driver.copy(found.ctypes.data, self.address, self.nbytes, self.driver_stream)
        self.driver.finish(ctypes.c_void_p(self.driver_stream))
        return found

    @property
    def driver_stream(self) -> int:
        """A stream only for reading values."""
        made: int = getattr(self.driver, "_looking", 0)
        if not made:
            made = self.driver.stream()
            self.driver._looking = made  # type: ignore[attr-defined]
        return made

    def free(self) -> None:
        """Free the memory, as an array library does when the last reference ends."""
        if self.address:
            if self.how == POOL:
                self.driver.must(
                    "cuMemFreeAsync", ctypes.c_uint64(self.address), ctypes.c_void_p(0)
                )
            else:
                self.driver.must("cuMemFree_v2", ctypes.c_uint64(self.address))
        self.address = 0

    def __del__(self) -> None:
        self.free()


class Part:
    """A run of adjacent elements of an array."""

    def __init__(self, whole: DeviceArray, begin: int, end: int) -> None:
        self.whole, self.begin, self.count = whole, begin, end - begin

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        address = self.whole.address + self.begin * self.whole.dtype.itemsize
        mine = {"shape": (self.count,), "data": (address, False)}
        return self.whole.__cuda_array_interface__ | mine


def empty_like(x: DeviceArray) -> DeviceArray:
    """A new array, as array libraries return it."""
    return DeviceArray(x.driver, np.full(x.shape, 99, x.dtype), stream=x.stream)


def empty(shape: tuple[int, ...], dtype: Any) -> DeviceArray:
    """A new array on the device that was used last."""
    return DeviceArray(the_driver(), np.full(shape, 99, dtype))


_driver: list[Driver] = []


def the_driver() -> Driver:
    """The driver of this process, made at the first call."""
    if not _driver:
        _driver.append(Driver())
    return _driver[0]
