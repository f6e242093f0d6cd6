"""Tensors on GPUs, as named operations are told of them."""

from __future__ import annotations

import torch

from gradred import _core
from gradred.buffers import cuda_interface
from gradred.buffers.dlpack import LEGACY_STREAM
from gradred.errors import UsageError, explain

SERVED = ("cpu", "cuda")
"""Kinds of devices whose tensors the front ends take."""


def placement_of(tensor: torch.Tensor, out: torch.Tensor | None, asked: str) -> _core.Placement:
    """Where a tensor on a GPU and its result lie.

    What the calling thread's current stream has been given by now comes first; the result is there,
    for all streams, when the operation has ended.

    Args:
        tensor: the input.
        out: the result; None: in memory that the engine makes.
        asked: for messages.

    Raises:
        gradred.UsageError: they are on different devices.
        gradred.DeviceError: it is no memory of this process.
    """
    if out is not None and out.device != tensor.device:
        found = f"the tensor is on {tensor.device}, the one for the result on {out.device}"
        raise UsageError(explain(asked, found, "Pass tensors on one device"))
    send = _placed(tensor, asked)
    recv = send if out is tensor else (None, None) if out is None else _placed(out, asked)
    after = {memory: stream for memory, stream in (send, recv) if memory and stream}
    return _core.Placement(send[0], recv[0], list(after.items()))


def _placed(tensor: torch.Tensor, asked: str) -> tuple[_core.DeviceMemory | None, int | None]:
    """Its memory, and the current stream there."""
    plain = _core.device_array(tensor)
    if plain is not None:
        return plain[-2:]
    current = int(torch.cuda.current_stream(tensor.device).cuda_stream)
    stream = current or LEGACY_STREAM  # PyTorch calls that one 0
    nbytes = tensor.numel() * tensor.element_size()
    return cuda_interface.place(tensor.data_ptr(), nbytes, stream, asked), stream
