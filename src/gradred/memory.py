"""Arrays in memory that suits gradred."""

from __future__ import annotations

import math
import mmap
import operator
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from gradred import _core
from gradred.buffers import arrays
from gradred.element_types import ITEMSIZES, numpy_dtype
from gradred.errors import TransportError, UsageError, UsageTypeError, explain

if TYPE_CHECKING:
    from gradred.buffers.device_array import DeviceArray

_SHARED_BYTES = 64 << 10  # from which on forked children share an array
_REMEDY = (
    "Free memory or descriptors, or raise their limits (ulimit -n, -v; the container's memory)"
)


@overload
def empty(
    shape: int | Sequence[int],
    dtype: npt.DTypeLike = ...,
    *,
    device: Literal["cpu"] | None = ...,
) -> npt.NDArray[Any]: ...
@overload
def empty(
    shape: int | Sequence[int],
    dtype: npt.DTypeLike = ...,
    *,
    device: Any,
) -> DeviceArray: ...
def empty(
    shape: int | Sequence[int],
    dtype: npt.DTypeLike = "float32",
    *,
    device: Any = None,
) -> npt.NDArray[Any] | DeviceArray:
    """A new array in C order: NumPy's, or one in a GPU's memory that peers read where it lies.

    Local: other ranks need not call it.

    On the host the memory begins at the start of a page and is allocated for real, so that writing
    to it later cannot fail, in huge pages where the system gives them. It is freed with the array.
    The other ranks of the host can read arrays from 64 KiB on where they lie, without the kernel's
    help: one way more for long allreduces, allgathers and broadcasts, taken where it is the
    fastest, as it mostly is where the ranks' cores share a cache. A forked child (a data loader's
    worker) shares from 64 KiB on: however much the parent goes on writing, nothing is there twice.
    What the child writes is its own, the parent never sees it; what the parent writes may show in
    pages that the child has not written.

    On a GPU gradred keeps the memory for later arrays when the array is gone, since other processes
    may hold it open. Where all ranks of a host pass such arrays their GPUs reduce them where they
    lie, and nothing is copied. Waits for the GPU's work where memory is given a second time.

    Args:
        shape: a length, or the lengths of the axes.
        dtype: NumPy's type or PyTorch's, or its name; those of ml_dtypes where it is installed, on
            the host.
        device: None or `"cpu"`: the host. `"cuda"`: the GPU that is current in this thread;
            `"cuda:1"`, or a device of CuPy or PyTorch: that one, which somebody has initialised.

    Raises:
        gradred.UsageError: gradred does not reduce the type, the shape is none, or the device.
        gradred.DeviceError: the GPU has not so much memory, or nobody has initialised it.
        MemoryError: the host has not so much memory.

    Example:
        >>> import gradred
        >>> gradred.empty((2, 3)).shape
        (2, 3)
    """
    lengths, kind = _checked(shape, dtype, "empty")
    if device is None or str(device) == "cpu":
        return _on_host(lengths, kind, "empty")
    from gradred.buffers import device_array

    number = device_array.number_of(device, "empty")
    return device_array.empty(lengths, kind, number, "empty")


def _checked(
    shape: int | Sequence[int], dtype: npt.DTypeLike, asked: str
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if type(dtype).__module__ == "torch":  # its types tell their names alone
        dtype = str(dtype).removeprefix("torch.")
    by_name = isinstance(dtype, str) and dtype in ITEMSIZES
    remedy = f"Use one of {', '.join(ITEMSIZES)}"
    try:
        kind: np.dtype[Any] = numpy_dtype(str(dtype)) if by_name else np.dtype(dtype)
    except TypeError as error:
        raise UsageTypeError(explain(f"an array of {dtype!r}", str(error), remedy)) from None
    if arrays.dtype_name(kind) is None:
        raise UsageTypeError(explain(f"an array of {kind}", "gradred does not reduce it", remedy))
    return _lengths(shape, asked), kind


def _on_host(lengths: tuple[int, ...], kind: np.dtype[Any], asked: str) -> npt.NDArray[Any]:
    nbytes = math.prod(lengths) * kind.itemsize
    return _pages(nbytes, asked)[:nbytes].view(kind).reshape(lengths)


def _lengths(shape: Any, asked: str) -> tuple[int, ...]:
    """The lengths of the axes, of whatever kind of whole number."""
    try:
        given = tuple(shape) if np.iterable(shape) else (shape,)
        lengths = tuple(operator.index(length) for length in given)
    except TypeError:
        found = f"shape {shape!r} is neither a whole number nor several"
        raise UsageTypeError(explain(asked, found, "Pass the lengths of the axes")) from None
    if any(length < 0 for length in lengths):
        found = f"shape {shape!r} has a negative length"
        raise UsageError(explain(asked, found, "Pass lengths of at least 0"))
    return lengths


def _pages(nbytes: int, asked: str) -> npt.NDArray[np.uint8]:
    """At least `nbytes` zero bytes from the start of a page on; goes with the last view of them."""
    if nbytes >= _SHARED_BYTES:
        try:
            return np.asarray(_core.ArrayMemory(nbytes))
        except TransportError as error:
            message = explain(f"{asked} of {nbytes} bytes", str(error), _REMEDY)
            raise MemoryError(message) from None
    memory = np.zeros(nbytes + mmap.PAGESIZE, np.uint8)
    begin = -int(memory.__array_interface__["data"][0]) % mmap.PAGESIZE
    return memory[begin:]


def zeros(shape: int | Sequence[int], dtype: npt.DTypeLike = "float32") -> npt.NDArray[Any]:
    """`empty`, filled with zeros.

    Example:
        >>> import gradred
        >>> gradred.zeros(2, "int64")
        array([0, 0])
    """
    return _on_host(*_checked(shape, dtype, "zeros"), "zeros")


def empty_like(x: Any) -> Any:
    """`empty` of the shape, type and order of axes of an array, in the memory where that lies.

    Args:
        x: an array. Of PyTorch's and of those in a GPU's memory (of CuPy, Numba, `gradred.empty`)
            the new one is of the same library, else NumPy's.

    Raises:
        gradred.UsageError: the array has gaps, or is of a library that cannot take such memory.
        gradred.DeviceError: as from `empty`.

    Example:
        >>> import numpy, gradred
        >>> gradred.empty_like(numpy.ones((2, 3), order="F")).strides
        (8, 16)
    """
    given = arrays.describe(x, "empty_like")
    if given.memory is not None:
        from gradred.buffers import device_array

        return device_array.empty_like(x, given, "empty_like")
    order = given.layout.order
    lengths = [given.shape[axis] for axis in order]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        tensor = torch.from_numpy(empty(given.nbytes, "uint8")).view(x.dtype)
        back = sorted(range(len(order)), key=order.__getitem__)
        return tensor.view(lengths).permute(back)
    return arrays.in_order(empty(lengths, given.dtype), order)
