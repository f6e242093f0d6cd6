"""Arrays in GPU memory that gradred allocates and that peers on the host can read directly."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from gradred import _core
from gradred.buffers import arrays
from gradred.buffers.cuda_interface import libraries
from gradred.buffers.dlpack import LEGACY_STREAM
from gradred.errors import UsageError, UsageTypeError, type_of

CURRENT: Final = -1
_REMEDY = "Pass 'cuda', 'cuda:0' or another number, or a device of CuPy or PyTorch"


class DeviceArray:
    """An array in C order in GPU memory; made by `gradred.empty(..., device="cuda")`.

    It has the CUDA Array Interface. Through it, CuPy (`cupy.asarray(x)`), PyTorch
    (`torch.as_tensor(x, device="cuda")`; PyTorch before 2.5 copies to the host without `device`)
    and Numba (`numba.cuda.as_cuda_array(x)`) make arrays of their own without a copy. Such an array
    keeps this one alive. Every call of gradred accepts this array and those.

    Its stream is the legacy default stream, which synchronises with all streams except non-blocking
    ones. If the program has given work to a non-blocking stream, it must wait for that work before
    it passes this array, or pass `stream=`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int) -> None:
        self.shape = shape
        self.dtype = dtype
        self._memory = _core.ExportedArray(self.nbytes, device, libraries())

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def device(self) -> str:
        """The device, in PyTorch's notation."""
        return f"cuda:{self._memory.device}"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._memory.address if self.nbytes else 0, False),
            "strides": None,
            "stream": LEGACY_STREAM,
            "version": 3,
        }

    def __array_namespace__(self, *, api_version: str | None = None) -> SimpleNamespace:
        """Return the array API's namespace for arrays like this one: `empty` and `empty_like`."""
        number = self._memory.device
        return SimpleNamespace(
            empty=lambda shape, dtype: DeviceArray(tuple(shape), np.dtype(dtype), number),
            empty_like=lambda x: DeviceArray(x.shape, x.dtype, number),
        )

    def __repr__(self) -> str:
        return f"gradred.DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"


def number_of(device: Any, asked: str) -> int:
    """Return the number of a CUDA device as this process sees it; `CURRENT` for the current one.

    Raises:
        gradred.UsageError: it is not a CUDA device.
    """
    given = getattr(device, "id", device)  # CuPy's
    if getattr(device, "type", None) is not None:  # PyTorch's
        given = str(device)
    if isinstance(given, str):
        kind, colon, number = given.partition(":")
        given = None if kind != "cuda" else CURRENT if not colon else number
        if isinstance(given, str):
            given = int(given) if given.isdecimal() else None
        elif given == CURRENT:
            return CURRENT
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    raise UsageTypeError(f"{asked} with device={device!r}", "it is not a GPU", _REMEDY)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], device: int, asked: str) -> DeviceArray:
    """Make a new array.

    Raises:
        gradred.UsageError: the CUDA Array Interface has no name for the type.
        gradred.DeviceError: there is no memory, or the program has not initialised the device.
    """
    if dtype.isbuiltin != 1:
        found = f"the CUDA Array Interface has no name for {dtype}"
        remedy = "Use gradred.empty_like(x), where x is an array of the library that has the type"
        raise UsageError(f"{asked} on a GPU", found, remedy)
    return DeviceArray(shape, dtype, device)


def empty_like(x: Any, given: arrays.Array, asked: str) -> Any:
    """Make an array of the library of `x`, in memory that gradred allocates.

    Raises:
        gradred.UsageError: the library cannot use such memory.
    """
    order = given.layout.order
    shape = tuple(given.shape[axis] for axis in order)
    back = sorted(range(len(order)), key=order.__getitem__)
    device = given.memory.ordinal if given.memory is not None else CURRENT
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        plain = DeviceArray((given.nbytes,), np.dtype("uint8"), device)
        tensor = torch.as_tensor(plain, device=x.device).view(x.dtype)
        return tensor.view(shape).permute(back)
    made = DeviceArray(shape, np.dtype(given.dtype), device)
    if isinstance(x, DeviceArray):
        return made
    module: Any = sys.modules.get(type(x).__module__.split(".")[0])
    if hasattr(module, "asarray"):  # CuPy
        return module.asarray(made).transpose(back)
    if hasattr(getattr(module, "cuda", None), "as_cuda_array"):  # Numba
        return module.cuda.as_cuda_array(made).transpose(back)
    found = f"gradred knows no way to make {type_of(x)} of memory that is there"
    remedy = "Use gradred.empty(shape, dtype, device=...), which has the CUDA Array Interface"
    raise UsageError(asked, found, remedy)
