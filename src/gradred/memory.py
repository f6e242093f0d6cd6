"""`gradred.empty` and its relatives: arrays in memory that other ranks can read directly."""

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

_SHARED_BYTES = 64 << 10  # arrays of at least this size lie in files that peers and forks can map
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
    """Make an array in C order: a NumPy array, or one in GPU memory that peers can read directly.

    Local: other ranks need not call it.

    On the host the memory begins at a page boundary. It is populated at once, in huge pages if the
    system provides them, so that a later write cannot fail. It is freed together with the array.

    Other ranks of the host can read an array of 64 KiB or more directly, without a copy by the
    kernel. This gives long allreduces, allgathers and broadcasts one more plan. gradred selects it
    if it is the fastest, which it mostly is if the ranks' cores share a cache.

    A forked child, such as a data loader's worker, shares arrays of 64 KiB or more with its parent.
    Writes of the parent do not duplicate the memory. The parent never sees writes of the child. The
    child may see later writes of the parent in pages that the child has not written itself.

    On a GPU, gradred reuses the memory for later arrays after the array is freed, since other
    processes may still have it open. If all ranks of a host pass such arrays, their GPUs reduce
    them directly and nothing is copied. Before memory is reused, the call waits for the GPU's work.

    Args:
        shape: a length, or the lengths of the axes.
        dtype: a type of NumPy or PyTorch, or its name. On the host also a type of ml_dtypes, if
            that is installed.
        device: None or `"cpu"` for the host; `"cuda"` for the current GPU of this thread;
            `"cuda:1"`, or a device of CuPy or PyTorch, for that GPU. The program must have
            initialised the GPU.

    Raises:
        gradred.UsageError: gradred does not reduce the type, or shape or device are not valid.
        gradred.DeviceError: the GPU has too little memory, or the program has not initialised it.
        MemoryError: the host has too little memory.

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
    if type(dtype).__module__ == "torch":  # NumPy does not understand PyTorch's types
        dtype = str(dtype).removeprefix("torch.")
    by_name = isinstance(dtype, str) and dtype in ITEMSIZES
    remedy = f"Use one of {', '.join(ITEMSIZES)}"
    try:
        kind: np.dtype[Any] = numpy_dtype(str(dtype)) if by_name else np.dtype(dtype)
    except TypeError as error:
        raise UsageTypeError(f"an array of {dtype!r}", str(error), remedy) from None
    if arrays.dtype_name(kind) is None:
        raise UsageTypeError(f"an array of {kind}", "gradred does not reduce it", remedy)
    return _lengths(shape, asked), kind


def _on_host(lengths: tuple[int, ...], kind: np.dtype[Any], asked: str) -> npt.NDArray[Any]:
    nbytes = math.prod(lengths) * kind.itemsize
    return _pages(nbytes, asked)[:nbytes].view(kind).reshape(lengths)


def _lengths(shape: Any, asked: str) -> tuple[int, ...]:
    """Return the lengths of the axes as ints, from any kind of whole number."""
    try:
        given = tuple(shape) if np.iterable(shape) else (shape,)
        lengths = tuple(operator.index(length) for length in given)
    except TypeError:
        found = f"shape {shape!r} is neither a whole number nor several"
        raise UsageTypeError(asked, found, "Pass the lengths of the axes") from None
    if any(length < 0 for length in lengths):
        found = f"shape {shape!r} has a negative length"
        raise UsageError(asked, found, "Pass lengths of at least 0")
    return lengths


def _pages(nbytes: int, asked: str) -> npt.NDArray[np.uint8]:
    """Return at least `nbytes` zero bytes from a page boundary on; the last view frees them."""
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
    """Make an array as `empty` does, filled with zeros.

    Example:
        >>> import gradred
        >>> gradred.zeros(2, "int64")
        array([0, 0])
    """
    return _on_host(*_checked(shape, dtype, "zeros"), "zeros")


def empty_like(x: Any) -> Any:
    """Make an array like `empty`, with the shape, type, axis order and device of another array.

    Args:
        x: an array. If it is PyTorch's or lies in a GPU's memory (of CuPy, Numba,
            `gradred.empty`), the new array is of the same library. Otherwise it is NumPy's.

    Raises:
        gradred.UsageError: the array has gaps, or its library cannot use such memory.
        gradred.DeviceError: as for `empty`.

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
