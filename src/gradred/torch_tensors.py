"""Tensors of PyTorch, described for named operations.

The front ends `gradred.torch` and `gradred.torch_distributed` share this module.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from gradred import tensors
from gradred.buffers import more_than_numbers, torch_versions
from gradred.buffers.dlpack import LEGACY_STREAM
from gradred.element_types import ITEMSIZES
from gradred.errors import UsageError, UsageTypeError, explain, type_of
from gradred.tensors import Description

DTYPES = {
    dtype: name
    for name in ITEMSIZES
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
"""gradred's names of the element types that this PyTorch has."""

SERVED = ("cpu", "cuda")
"""Types of devices whose tensors the front ends accept."""

increment_versions = torch_versions.know(torch)
"""Tells autograd that a call writes these tensors."""


def require_tensor(x: Any, asked: str) -> torch.Tensor:
    """Return `x` if it is a tensor of numbers, else raise UsageTypeError."""
    if isinstance(x, torch.Tensor):
        if type(x) is not torch.Tensor:
            more_than_numbers.refuse(x, asked)
        return x
    if x is None:
        found = "the tensor is None, as is the gradient of a parameter that no loss depends on"
        remedy = "Pass a tensor: of a gradient zeros, or leave it out where no rank has one"
        raise UsageTypeError(asked, found, remedy)
    raise UsageTypeError(asked, f"{type_of(x)} is not a tensor", "Pass torch.as_tensor(x)")


def require_memory(tensor: torch.Tensor, asked: str) -> None:
    """Raise UsageError for a dense tensor whose storage was freed."""
    if tensor.data_ptr() == 0 and tensor.numel() > 0:
        found = f"the tensor has {tensor.numel()} elements, but no memory"
        raise UsageError(asked, found, "Pass a tensor whose elements exist")


class TorchTensors:
    """Answers to questions about tensors of PyTorch; see `gradred.tensors.Tensors`."""

    def describe(self, tensor: torch.Tensor, asked: str) -> Description:
        """Describe a tensor.

        Raises:
            ValueError: the tensor's type is not supported, it is sparse, conjugated or negated, or
                it is on another kind of device.
            gradred.UsageError: it is not a tensor.
        """
        require_tensor(tensor, asked)
        dtype = DTYPES.get(tensor.dtype)
        if dtype is None:
            remedy = "Convert it first"
            raise ValueError(explain(asked, f"{tensor.type()} is not supported", remedy))
        kind = tensor.device.type
        if tensor.layout is not torch.strided or kind not in SERVED:
            remedy = "Pass a dense tensor in host memory or on a GPU"
            raise ValueError(explain(asked, _why_not(tensor), remedy))
        if tensor.is_conj() or tensor.is_neg():
            found = "the tensor is a conjugated or negated view"
            raise ValueError(explain(asked, found, "Pass x.resolve_conj().resolve_neg()"))
        require_memory(tensor, asked)
        strides = None if tensor.is_contiguous() else _strides_in_bytes(tensor)
        return Description(tensor.data_ptr(), dtype, tuple(tensor.shape), kind == "cpu", strides)

    def device(self, tensor: torch.Tensor) -> str:
        """The name of the tensor's device."""
        return str(tensor.device)

    def current_stream(self, tensor: torch.Tensor) -> int:
        """The handle of the current stream on the tensor's GPU."""
        current = int(torch.cuda.current_stream(tensor.device).cuda_stream)
        return current or LEGACY_STREAM  # PyTorch's number for it is 0


_TENSORS = TorchTensors()


stream_of = _TENSORS.current_stream
described = functools.partial(tensors.described, _TENSORS)
placement_of = functools.partial(tensors.placement_of, _TENSORS)
"""See the functions of `gradred.tensors` with these names."""


def tensor_of(
    memory: Any, dtype: torch.dtype, shape: Sequence[int], like: torch.Tensor | None
) -> torch.Tensor:
    """Make a tensor in C order of bytes in host memory.

    Args:
        memory: the bytes of all elements, an array of uint8. The tensor may keep it.
        dtype: the elements' type.
        shape: lengths of the axes.
        like: a tensor on the device of the new one. None: host memory.
    """
    shape, like = tuple(shape), _ON_HOST if like is None else like
    if memory.nbytes == 0:
        return like.new_empty(shape, dtype=dtype)
    made = torch.from_numpy(memory).view(dtype).view(shape)
    return made if like.device.type == "cpu" else like.new_empty(shape, dtype=dtype).copy_(made)


_ON_HOST = torch.empty(0, device="cpu")


def _strides_in_bytes(tensor: torch.Tensor) -> tuple[int, ...]:
    itemsize = tensor.element_size()
    return tuple(step * itemsize for step in tensor.stride())


def _why_not(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        return f"the tensor is sparse ({tensor.layout})"
    return f"the tensor is on {tensor.device}"
