"""Tensors of any framework, described for named operations.

A front end answers questions about its tensors by `Tensors`. The functions here make of the answers
what `NamedOperations.submit` takes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from gradred import _core
from gradred.buffers import cuda_interface
from gradred.buffers.arrays import layout_of
from gradred.element_types import ITEMSIZES
from gradred.errors import UsageError, explain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gradred.named import Described

TensorT = TypeVar("TensorT", contravariant=True)


class Description(NamedTuple):
    """A tensor's elements and their memory."""

    address: int
    dtype: str
    """gradred's name of the element type (`gradred.element_types`)."""
    shape: tuple[int, ...]
    on_host: bool
    """Whether the host can access the memory. Else it is a GPU's."""
    strides: tuple[int, ...] | None
    """The bytes from one index of each axis to the next.

    None: the elements lie side by side in the order of their indices (C order)."""

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return math.prod(self.shape) * ITEMSIZES[self.dtype]

    def order_of_axes(self) -> tuple[int, ...] | None:
        """The axes from the slowest to the fastest in memory. None: there are gaps."""
        layout = layout_of(self.shape, self.strides, ITEMSIZES[self.dtype])
        return None if layout is None else layout.order


class Tensors(Protocol[TensorT]):
    """Answers to questions about a framework's tensors. No function blocks or waits for a GPU."""

    def describe(self, tensor: TensorT, asked: str) -> Description:
        """Describe a tensor.

        Raises:
            gradred.UsageError: it is not a tensor.
            ValueError: named operations do not support its element type or its memory.
        """

    def device(self, tensor: TensorT) -> str:
        """The name of the tensor's device, for comparison and for error messages."""

    def current_stream(self, tensor: TensorT) -> int:
        """The handle of the calling thread's current stream on the GPU that has the tensor.

        The legacy default stream is `gradred.buffers.dlpack.LEGACY_STREAM`, not 0.
        """


def described(
    tensors: Tensors[TensorT], tensor: TensorT, out: TensorT | None, asked: str
) -> Described:
    """Describe a tensor for the engine. If `out` is None, the engine allocates the result.

    Args:
        tensors: answers questions about both tensors.
        tensor: the input.
        out: the tensor for the result, of the same type and shape. `tensor` itself: in place.
        asked: name of the call, for error messages.

    Raises:
        ValueError: the engine does not support the tensor's type, memory or layout.
        gradred.UsageError: `tensor` is not a tensor, or `out` is on another device.
        gradred.DeviceError: the memory does not belong to this process.
    """
    if out is tensor:  # a new tensor for the result needs no word
        _core.tell_of_write(out)
    found = tensors.describe(tensor, asked)
    result = found if out is tensor or out is None else tensors.describe(out, asked)
    plain = (found.address, 0 if out is None else result.address, found.dtype, found.shape)
    on_host = found.on_host and result.on_host
    placement = None if on_host else placement_of(tensors, tensor, out, asked)
    if found.strides is None and result.strides is None:
        return plain if placement is None else (*plain, 0, placement)
    order = found.order_of_axes()
    if order is None or out is None or order != result.order_of_axes():
        raise ValueError(explain(asked, *_why_not_dense(found, result)))
    return (*plain, 0, placement, order)


def _why_not_dense(found: Description, result: Description) -> tuple[str, str]:
    """Why an operation needs another layout, and the remedy. In place: `result` is `found`."""
    what = f"the axes of shape {found.shape} are in another order than those of the result"
    for one, name in ((result, "tensor for the result"), (found, "tensor")):
        if one.order_of_axes() is None:
            what = f"the {name} is not dense: shape {one.shape}, strides of {one.strides} bytes"
    remedy = "Pass a contiguous copy of it"
    return what, f"{remedy}, and then copy the result back" if found is result else remedy


def placement_of(
    tensors: Tensors[TensorT], tensor: TensorT, out: TensorT | None, asked: str
) -> _core.Placement:
    """Describe the memory of a tensor on a GPU and of its result.

    The operation starts after the work that the calling thread's current stream has received so
    far. When the operation has ended, all streams may use the result.

    The arguments are those of `described`.

    Raises:
        gradred.UsageError: the tensors are on different devices.
        gradred.DeviceError: the memory does not belong to this process.
    """
    if out is not None and tensors.device(out) != tensors.device(tensor):
        here, there = tensors.device(tensor), tensors.device(out)
        found = f"the tensor is on {here}, the one for the result on {there}"
        raise UsageError(asked, found, "Pass tensors on one device")
    send = _placed(tensors, tensor, asked)
    if out is None:
        recv: tuple[_core.DeviceMemory | None, int | None] = (None, None)
    else:
        recv = send if out is tensor else _placed(tensors, out, asked)
    after = {memory: stream for memory, stream in (send, recv) if memory and stream}
    return _core.Placement(send[0], recv[0], list(after.items()))


def _placed(
    tensors: Tensors[TensorT], tensor: TensorT, asked: str
) -> tuple[_core.DeviceMemory | None, int | None]:
    """The memory of a tensor, and the current stream of its device."""
    plain = _core.plain_array(tensor)
    if plain is not None:
        return plain[-2:]
    found, stream = tensors.describe(tensor, asked), tensors.current_stream(tensor)
    return cuda_interface.place(found.address, found.nbytes, stream, asked), stream


def write(tensors: Tensors[TensorT], tensor: TensorT, elements: NDArray[Any], asked: str) -> None:
    """Write all elements of a dense tensor, in their order in memory. Blocks.

    `elements` are contiguous bytes.
    """
    found = tensors.describe(tensor, asked)
    _core.tell_of_write(tensor)
    placement = None if found.on_host else placement_of(tensors, tensor, tensor, asked)
    _core.copy_bytes(found.address, elements.ctypes.data, found.nbytes, placement)


def even_splits(rows: int, ranks: int, asked: str) -> list[int]:
    """Return how many of the rows each rank gets; UsageError unless all get the same."""
    each, rest = divmod(rows, ranks)
    if rest:
        raise UsageError(asked, f"{rows} rows do not divide among {ranks} ranks", "Pass splits")
    return [each] * ranks
