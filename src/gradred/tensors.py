"""Tensors of any framework, described for named operations.

A front end answers questions about its tensors by `Tensors`. The functions here make of the answers
what `NamedOperations.submit` takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from gradred import _core
from gradred.buffers import cuda_interface
from gradred.errors import UsageError, explain

if TYPE_CHECKING:
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
    in_order: bool
    """Whether the elements lie side by side in the order of their indices (C order)."""


class Tensors(Protocol[TensorT]):
    """Answers to questions about a framework's tensors. No function blocks or waits for a GPU."""

    def describe(self, tensor: TensorT, asked: str) -> Description:
        """Describe a tensor.

        Args:
            tensor: the tensor.
            asked: name of the call, for error messages.

        Raises:
            gradred.UsageError: it is not a tensor.
            ValueError: named operations do not support its element type or its memory.
        """

    def memory(self, tensor: TensorT) -> tuple[int, int]:
        """The address of the first element, and the number of bytes of all elements."""

    def order_of_axes(self, tensor: TensorT) -> tuple[int, ...] | None:
        """The axes from the slowest to the fastest in memory. None: the tensor has gaps."""

    def device(self, tensor: TensorT) -> str:
        """The name of the tensor's device, for comparison and for error messages."""

    def current_stream(self, tensor: TensorT) -> int:
        """The handle of the calling thread's current stream on the GPU that has the tensor.

        The legacy default stream is `gradred.buffers.dlpack.LEGACY_STREAM`, not 0.
        """

    def type_name(self, tensor: TensorT) -> str:
        """The framework's name of the tensor's type, for error messages."""

    def why_not_dense(self, tensor: TensorT, in_place: bool) -> tuple[str, str]:
        """For an error message: why an operation needs another layout, and the remedy.

        Args:
            tensor: a tensor with gaps, or with other axes order than the tensor for the result.
            in_place: whether the tensor itself receives the result.
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
    found = tensors.describe(tensor, asked)
    result = 0 if out is None else found.address if out is tensor else tensors.memory(out)[0]
    plain = (found.address, result, found.dtype, found.shape)
    placement = None if found.on_host else placement_of(tensors, tensor, out, asked)
    if found.in_order:
        return plain if placement is None else (*plain, 0, placement)
    order = tensors.order_of_axes(tensor)
    if order is None or out is None or order != tensors.order_of_axes(out):
        raise ValueError(explain(asked, *tensors.why_not_dense(tensor, out is tensor)))
    return (*plain, 0, placement, order)


def placement_of(
    tensors: Tensors[TensorT], tensor: TensorT, out: TensorT | None, asked: str
) -> _core.Placement:
    """Describe the memory of a tensor on a GPU and of its result.

    The operation starts after the work that the calling thread's current stream has received so
    far. When the operation has ended, all streams may use the result.

    Args:
        tensors: answers questions about both tensors.
        tensor: the input.
        out: the result. None: the engine allocates it.
        asked: name of the call, for error messages.

    Raises:
        gradred.UsageError: the tensors are on different devices.
        gradred.DeviceError: the memory does not belong to this process.
    """
    if out is not None and tensors.device(out) != tensors.device(tensor):
        here, there = tensors.device(tensor), tensors.device(out)
        found = f"the tensor is on {here}, the one for the result on {there}"
        raise UsageError(explain(asked, found, "Pass tensors on one device"))
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
    stream = tensors.current_stream(tensor)
    return cuda_interface.place(*tensors.memory(tensor), stream, asked), stream
