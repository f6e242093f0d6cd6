"""Description of tensors on GPUs for named operations."""

from __future__ import annotations

import torch

from gradred import _core
from gradred.buffers import cuda_interface
from gradred.buffers.dlpack import LEGACY_STREAM
from gradred.errors import UsageError, explain

SERVED = ("cpu", "cuda")
"""Types of devices whose tensors the front ends accept."""


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
