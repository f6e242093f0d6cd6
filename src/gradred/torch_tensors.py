"""Tensors of PyTorch, described for named operations.

The front ends `gradred.torch` and `gradred.torch_distributed` share this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gradred import _core
from gradred.buffers import cuda_interface
from gradred.buffers.arrays import layout_of
from gradred.buffers.dlpack import LEGACY_STREAM
from gradred.element_types import ITEMSIZES
from gradred.errors import UsageError, UsageTypeError, explain

if TYPE_CHECKING:
    from gradred.named import Described

DTYPES = {
    dtype: name
    for name in ITEMSIZES
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
"""gradred's names of the element types that this PyTorch has."""

SERVED = ("cpu", "cuda")
"""Types of devices whose tensors the front ends accept."""

_core.know_tensors(torch.Tensor, torch.nn.Parameter)


def require_tensor(x: Any, asked: str) -> torch.Tensor:
    """Return `x` if it is a tensor, else raise UsageTypeError."""
    if isinstance(x, torch.Tensor):
        return x
    if x is None:
        found = "the tensor is None, as is the gradient of a parameter that no loss depends on"
        remedy = "Pass a tensor: of a gradient zeros, or leave it out where no rank has one"
        raise UsageTypeError(explain(asked, found, remedy))
    found = f"a {type(x).__name__} is no tensor"
    raise UsageTypeError(explain(asked, found, "Pass torch.as_tensor(x)"))


def described(tensor: torch.Tensor, out: torch.Tensor | None, asked: str) -> Described:
    """Describe a tensor for the engine. If `out` is None, the engine allocates the result.

    Raises:
        ValueError: the engine does not support the tensor's type, memory or layout.
        gradred.UsageError: `tensor` is not a tensor.
        gradred.DeviceError: the memory does not belong to this process.
    """
    require_tensor(tensor, asked)
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        remedy = "Convert it first"
        raise ValueError(explain(asked, f"{tensor.type()} is not supported", remedy))
    if tensor.layout is not torch.strided or tensor.device.type not in SERVED:
        remedy = "Pass a dense tensor in host memory or on a GPU"
        raise ValueError(explain(asked, _why_not(tensor), remedy))
    if any(one is not None and (one.is_conj() or one.is_neg()) for one in (tensor, out)):
        found = "the tensor is a conjugated or negated view"
        raise ValueError(explain(asked, found, "Pass x.resolve_conj().resolve_neg()"))
    result = 0 if out is None else out.data_ptr()
    plain = (tensor.data_ptr(), result, dtype, tuple(tensor.shape))
    placement = None if tensor.device.type == "cpu" else placement_of(tensor, out, asked)
    if tensor.is_contiguous():
        return plain if placement is None else (*plain, 0, placement)
    order = _order_of(tensor)
    if order is None or out is None or order != _order_of(out):
        found = f"the tensor is not dense: shape {plain[3]}, strides {tensor.stride()}"
        remedy = "Pass tensor.contiguous()"
        if out is tensor:
            remedy = "Pass dense = tensor.contiguous(), and then copy it back: tensor.copy_(dense)"
        raise ValueError(explain(asked, found, remedy))
    return (*plain, 0, placement, order)


def _why_not(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        return f"the tensor is sparse ({tensor.layout})"
    return f"the tensor is on {tensor.device}"


def _order_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The axes from the slowest to the fastest in memory. None: the tensor has gaps."""
    layout = layout_of(tuple(tensor.shape), tensor.stride(), 1)
    return None if layout is None else layout.order


def placement_of(tensor: torch.Tensor, out: torch.Tensor | None, asked: str) -> _core.Placement:
    """Describe the memory of a tensor on a GPU and of its result.

    The operation starts after the work that the calling thread's current stream has received so
    far. When the operation has ended, all streams may use the result.

    Args:
        tensor: the input.
        out: the result. None: the engine allocates it.
        asked: name of the call, for error messages.

    Raises:
        gradred.UsageError: the tensors are on different devices.
        gradred.DeviceError: the memory does not belong to this process.
    """
    if out is not None and out.device != tensor.device:
        found = f"the tensor is on {tensor.device}, the one for the result on {out.device}"
        raise UsageError(explain(asked, found, "Pass tensors on one device"))
    send = _placed(tensor, asked)
    recv = send if out is tensor else (None, None) if out is None else _placed(out, asked)
    after = {memory: stream for memory, stream in (send, recv) if memory and stream}
    return _core.Placement(send[0], recv[0], list(after.items()))


def _placed(tensor: torch.Tensor, asked: str) -> tuple[_core.DeviceMemory | None, int | None]:
    """The memory of a tensor, and the current stream of its device."""
    plain = _core.device_array(tensor)
    if plain is not None:
        return plain[-2:]
    current = int(torch.cuda.current_stream(tensor.device).cuda_stream)
    stream = current or LEGACY_STREAM  # PyTorch's number for it is 0
    nbytes = tensor.numel() * tensor.element_size()
    return cuda_interface.place(tensor.data_ptr(), nbytes, stream, asked), stream
