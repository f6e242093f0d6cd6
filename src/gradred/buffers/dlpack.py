"""Get arrays by DLPack, also of element types that NumPy's own reader does not know."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gradred import _core

# Codes of DLDeviceType for memory that the processor can read: CPU, pinned and managed memory.
HOST_DEVICES: Final = frozenset({1, 3, 11, 13})
CPU, CUDA, _PINNED, _MANAGED = 1, 2, 3, 13
CUDA_KNOWS: Final = frozenset({CUDA, _PINNED, _MANAGED})  # a device may be writing there
LEGACY_STREAM: Final = 1
THREADS_STREAM: Final = 2
"""The calling thread's own default stream."""
_DEVICE_NAMES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI"}


def device_name(kind: int) -> str:
    """Return the name of a DLDeviceType."""
    return _DEVICE_NAMES.get(kind, f"number {kind}")


class Exported(NamedTuple):
    """What an array's library reports about its memory."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """The strides in bytes. None: C order."""
    itemsize: int
    writable: bool
    owner: object
    """The capsule or the array, which keeps the memory alive."""
    memory: _core.DeviceMemory | None = None
    """The device that owns the memory; None for host memory."""
    stream: int | None = None
    """The stream in which the program works on a device's memory; None if no work is pending."""


def export(x: Any, kind: int, *, writable: bool = True) -> Exported:
    """Get the tensor of `x` in host memory or on a CUDA device.

    `kind` is its DLDeviceType; `writable` is False if the library never writes to such arrays.

    On a device, the exporter makes the legacy default stream wait for earlier work on the tensor.

    Raises:
        BufferError, TypeError, ValueError, RuntimeError: whatever the exporter raises.
    """
    ordered = {"stream": LEGACY_STREAM} if kind in (CUDA, _MANAGED) else {}
    try:
        capsule, versioned = x.__dlpack__(max_version=(1, 0), **ordered), True
    except TypeError:  # the exporter is older than version 1.0
        capsule, versioned = x.__dlpack__(**ordered), False
    found = _core.read_dlpack(capsule)
    if found[0] not in HOST_DEVICES | {CUDA}:
        raise BufferError(f"it is on a {device_name(found[0])} device")
    if found[0] == CPU:
        _core.know_capsules(type(x), versioned, writable=writable)
    return Exported(*found[1:], capsule)
