"""Read DLPack's tensor structure, for element types that NumPy's own reader does not know.

The structures are those of dlpack.h, version 1.0 and the version before it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

from gradred import _core
from gradred.element_types import ELEMENT_TYPES

# Codes of DLDeviceType for memory that the processor can read: CPU, pinned and managed memory.
HOST_DEVICES: Final = frozenset({1, 3, 11, 13})
CUDA, _PINNED, _MANAGED = 2, 3, 13
CUDA_KNOWS: Final = frozenset({CUDA, _PINNED, _MANAGED})  # a device may be writing there
LEGACY_STREAM: Final = 1
THREADS_STREAM: Final = 2
"""The calling thread's own default stream."""
_DEVICE_NAMES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI"}
_NAMES = {(row.dlpack, 8 * row.itemsize): row.name for row in ELEMENT_TYPES.values()}
_CODES = {0: "int", 1: "uint", 2: "float", 5: "complex"}
_READ_ONLY = 1


def device_name(kind: int) -> str:
    """Return the name of a DLDeviceType."""
    return _DEVICE_NAMES.get(kind, f"number {kind}")


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Exported(NamedTuple):
    """What an array's library reports about its memory."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In bytes; None for C order."""
    itemsize: int
    writable: bool
    owner: object
    """The capsule or the array, which keeps the memory alive."""
    memory: _core.DeviceMemory | None = None
    """The device that owns the memory; None for host memory."""
    stream: int | None = None
    """The stream in which the program works on a device's memory; None if no work is pending."""


_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)


def export(x: Any, kind: int) -> Exported:
    """Get the tensor of `x` in host memory or on a CUDA device; `kind` is its DLDeviceType.

    On a device, the exporter makes the legacy default stream wait for earlier work on the tensor.

    Raises:
        BufferError, TypeError, ValueError, RuntimeError: whatever the exporter raises.
    """
    ordered = {"stream": LEGACY_STREAM} if kind in (CUDA, _MANAGED) else {}
    try:
        capsule = x.__dlpack__(max_version=(1, 0), **ordered)
    except TypeError:  # the exporter is older than version 1.0
        capsule = x.__dlpack__(**ordered)
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        return _read(versioned.tensor, not versioned.flags & _READ_ONLY, capsule)
    return _read(_Tensor.from_address(_get_pointer(capsule, b"dltensor")), True, capsule)


def _read(tensor: _Tensor, writable: bool, capsule: object) -> Exported:
    if tensor.device_type not in HOST_DEVICES | {CUDA}:
        raise BufferError(f"it is on a {device_name(tensor.device_type)} device")
    code, bits, lanes = tensor.code, tensor.bits, tensor.lanes
    if (code, lanes) == (2, 2):  # the form of complex numbers before version 1.0
        code, bits, lanes = 5, 2 * bits, 1
    dtype = _NAMES.get((code, bits)) or f"{_CODES.get(code, f'type {code} of ')}{bits}"
    if lanes != 1:
        dtype, bits = f"{lanes} times {dtype}", bits * lanes
    itemsize = bits // 8
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = None
    if tensor.strides:
        strides = tuple(step * itemsize for step in tensor.strides[: tensor.ndim])
    address = tensor.data + tensor.byte_offset if tensor.data else 0
    return Exported(address, dtype, shape, strides, itemsize, writable, capsule)
