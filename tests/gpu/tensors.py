"""Tensors of PyTorch that claim to be on a GPU, in the simulated driver's memory.

PyTorch's own need a build with CUDA. These tensors implement its views and its copies. Everything
else is computed on the host, with a copy before and after.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from gpu.simulated import DeviceArray, Driver, the_driver
from torch.utils._pytree import tree_map_only

GPU = "cuda:0"


class OnGpu(torch.Tensor):
    """A tensor on the first GPU.

    Args:
        shape: a meta tensor, which holds shape, strides and type.
        memory: its bytes, which its views share.
    """

    shape_of: torch.Tensor
    memory: DeviceArray

    @staticmethod
    def __new__(cls, shape: torch.Tensor, memory: DeviceArray) -> OnGpu:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            shape.shape,
            strides=shape.stride(),
            storage_offset=shape.storage_offset(),
            dtype=shape.dtype,
            device=GPU,
        )
        made.shape_of, made.memory = shape, memory
        return made  # type: ignore[no-any-return]

    def data_ptr(self) -> int:
        if self.numel() == 0:
            return 0
        offset = self.shape_of.storage_offset() * self.shape_of.element_size()
        return self.memory.address + offset

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> OnGpu:
        # PyTorch's own property needs the device before __torch_dispatch__ is called.
        held = self.bytes_on_host()
        self.view_of(held).copy_(source.cpu())
        _copy_back(self.memory, held)
        return self

    def contiguous(self, memory_format: Any = torch.contiguous_format) -> OnGpu:
        # This also needs the device before __torch_dispatch__.
        if self.shape_of.is_contiguous(memory_format=memory_format):
            return self
        return on_gpu(self.cpu().contiguous(memory_format=memory_format))

    def bytes_on_host(self) -> torch.Tensor:
        """A copy of all of the memory, made in the current stream without other synchronisation."""
        torch.cuda.current_stream().synchronize()
        return torch.from_numpy(self.memory.get())

    def view_of(self, memory: torch.Tensor) -> torch.Tensor:
        """This tensor, in a copy of its memory."""
        lies = (self.shape_of.shape, self.shape_of.stride(), self.shape_of.storage_offset())
        if not len(memory):
            return torch.empty(self.shape_of.shape, dtype=self.shape_of.dtype)
        return torch.as_strided(memory.view(self.shape_of.dtype), *lies)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.is_view:
            whole = args[0]
            made = tree_map_only(OnGpu, lambda x: x.shape_of, args)
            found = func(*made, **kwargs)
            return tree_map_only(torch.Tensor, lambda shape: cls(shape, whole.memory), found)
        device = kwargs.pop("device", None)
        held: dict[int, torch.Tensor] = {}
        on_host = tree_map_only(
            OnGpu, lambda x: x.view_of(held.setdefault(id(x.memory), x.bytes_on_host())), args
        )
        found = func(*on_host, **kwargs)
        if func._schema.is_mutable:
            target = args[0]
            if isinstance(target, OnGpu):
                _copy_back(target.memory, held[id(target.memory)])
            return target
        if device is not None and torch.device(device).type == "cpu":
            return found
        return tree_map_only(torch.Tensor, on_gpu, found)


def _copy_back(memory: DeviceArray, values: torch.Tensor) -> None:
    memory.driver.copy(memory.address, values.data_ptr(), memory.nbytes)


def on_gpu(values: torch.Tensor, stream: int | None = None) -> OnGpu:
    """The same tensor on the GPU. With a stream it arrives there later, in the stream's order."""
    lies_densely = torch.ops.aten.is_non_overlapping_and_dense(values)
    values = values.detach() if lies_densely else values.detach().contiguous()
    count = values.numel()
    flat = torch.as_strided(values, (count,), (1,), values.storage_offset())
    data = flat.view(torch.uint8).numpy() if count else np.empty(0, np.uint8)
    shape = torch.empty_strided(values.shape, values.stride(), dtype=values.dtype, device="meta")
    return OnGpu(shape, DeviceArray(the_driver(), data, stream=stream))


@contextlib.contextmanager
def in_stream(driver: Driver, stream: int) -> Iterator[None]:
    """Make the stream PyTorch's current one."""
    wait = lambda: driver.must("cuStreamSynchronize", ctypes.c_void_p(stream))  # noqa: E731
    current = SimpleNamespace(cuda_stream=stream, synchronize=wait)
    with (
        mock.patch.object(torch.cuda, "current_stream", return_value=current),
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
    ):
        yield
