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
    current = int(torch.cuda.current_stream(tensor.device).cuda_stream)
    stream = current or LEGACY_STREAM  # PyTorch calls that one 0
    send, recv = (None if one is None else _memory_of(one, stream, asked) for one in (tensor, out))
    after = [(memory, stream) for memory in {id(m): m for m in (send, recv) if m}.values()]
    return _core.Placement(send, recv, after)


def _memory_of(tensor: torch.Tensor, stream: int, asked: str) -> _core.DeviceMemory | None:
    nbytes = tensor.numel() * tensor.element_size()
    return cuda_interface.place(tensor.data_ptr(), nbytes, stream, asked)
