"""Buckets of gradients: contiguous memory that other ranks can read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from gradred.errors import explain
from gradred.horovod.errors import HorovodInternalError
from gradred.horovod.operations import engine_of, submit, synchronize
from gradred.horovod.process_sets import ProcessSet
from gradred.memory import empty
from gradred.torch.groups import runs_of
from gradred.torch_tensors import SERVED

BUCKET_BYTES = 16 << 20
"""The size at which a bucket is full. A larger gradient has its own bucket."""

_ALIGNED_BYTES = 64  # alignment of each gradient, for vector units


class GradientBucket:
    """Gradients of one element type in one vector of `gradred.empty`, on their device.

    The parameters are in memory order.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        dtype = parameters[0].dtype
        itemsize = dtype.itemsize
        begins, count = [], 0
        for parameter in parameters:
            begins.append(count)
            count += -(-parameter.numel() * itemsize // _ALIGNED_BYTES) * _ALIGNED_BYTES // itemsize
        self.vector = _zeros(count * itemsize, parameters[0].device).view(dtype)
        self.parameters = list(parameters)
        self._views = {
            parameter: torch.as_strided(self.vector, parameter.shape, parameter.stride(), begin)
            for parameter, begin in zip(parameters, begins, strict=True)
        }
        self._missing = set(parameters)
        self._streams: set[torch.cuda.Stream] = set()  # streams that computed gradients

    def take(self, parameter: torch.nn.Parameter) -> bool:
        """Store a parameter's gradient in the bucket. Returns True if the bucket is now complete.

        A gradient elsewhere in memory, as after `zero_grad(set_to_none=True)`, is copied. A missing
        gradient becomes zeros.
        """
        if self.vector.is_cuda:
            self._streams.add(torch.cuda.current_stream(self.vector.device))
        view, gradient = self._views[parameter], parameter.grad
        if gradient is None:
            view.zero_()
            parameter.grad = view
        elif gradient is not view:
            with torch.no_grad():
                view.copy_(gradient)
            parameter.grad = view
        self._missing.discard(parameter)
        return not self._missing

    def _layout(self, names: Mapping[torch.nn.Parameter, str]) -> list[str]:
        return [
            f"{names[one]} {list(one.shape)} with strides "
            f"{[step for step, length in zip(one.stride(), one.shape, strict=True) if length > 1]}"
            for one in self.parameters
        ]

    def compare_layout(
        self, name: str, names: Mapping[torch.nn.Parameter, str], process_set: ProcessSet
    ) -> int:
        """Start an operation that fails if the ranks' buckets differ, and return its handle."""
        text = "\n".join([str(self.vector.dtype), *self._layout(names)])
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        described = (0, 0, "uint8", (0, int.from_bytes(digest, "little") >> 2))  # no elements
        engine = engine_of(process_set)
        return submit(engine, "allreduce", f"layout of {name}", [described], lambda _: None, None)

    def require_one_layout(self, handle: int, names: Mapping[torch.nn.Parameter, str]) -> None:
        """Wait for the operation that `compare_layout` started.

        Raises:
            HorovodInternalError: the ranks' buckets differ.
        """
        try:
            synchronize(handle)
        except HorovodInternalError as error:
            if "Mismatched" not in str(error):
                raise
            found = f"other ranks have other parameters in a bucket; here {self._layout(names)}"
            remedy = "Give each parameter one name, shape and memory format on all ranks"
            asked = "gradient_as_bucket_view=True"
            raise HorovodInternalError(explain(asked, found, remedy)) from error

    def begin_anew(self) -> None:
        """Mark all gradients as missing, and make the current stream wait for those in the bucket.

        The wait is needed because autograd computes each gradient in the stream of its parameter's
        forward pass.
        """
        self._missing.update(self.parameters)
        if self._streams:
            current = torch.cuda.current_stream(self.vector.device)
            for stream in self._streams - {current}:
                current.wait_stream(stream)
            self._streams.clear()


def _zeros(nbytes: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.from_numpy(empty(nbytes, np.uint8))
    zeros = torch.as_tensor(empty(nbytes, np.uint8, device=device), device=device).zero_()
    torch.cuda.current_stream(device).synchronize()  # other streams write gradients
    return zeros


def buckets_of(
    parameters: Sequence[torch.nn.Parameter], most_bytes: int = BUCKET_BYTES
) -> list[GradientBucket]:
    """Divide parameters into buckets of one element type and device each.

    The parameters are in the order in which their gradients are expected. `most_bytes` limits
    buckets with several gradients.

    Raises:
        ValueError: a parameter is not a dense tensor in host memory or on a CUDA device.
    """
    for parameter in parameters:
        _check(parameter)
    kind, nbytes = lambda x: (x.dtype, x.device), lambda x: x.numel() * x.element_size()
    return [GradientBucket(members) for members in runs_of(parameters, kind, nbytes, most_bytes)]


def _check(parameter: torch.nn.Parameter) -> None:
    dense = parameter.layout is torch.strided and parameter.device.type in SERVED
    if dense and torch.ops.aten.is_non_overlapping_and_dense(parameter):
        return
    found = f"a parameter is {parameter.layout} on {parameter.device}"
    if dense:
        found = f"a parameter has holes between its elements (strides {parameter.stride()})"
    asked = "DistributedOptimizer(gradient_as_bucket_view=True)"
    raise ValueError(explain(asked, found, "Leave gradient_as_bucket_view out"))
