"""Telling PyTorch's autograd that a call writes a tensor.

A backward pass that needs the tensor's elements from before the call then raises an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from gradred import _core


@functools.cache
def know(torch: Any) -> Callable[[Iterable[Any]], None]:
    """Let the core look at PyTorch's own tensors by itself, and report its writes to autograd.

    Returns the function that reports writes to several tensors.

    Args:
        torch: the module.
    """
    increment = _increment_of(torch)
    _core.know_tensors(torch.Tensor, torch.nn.Parameter, increment)
    return increment


def _increment_of(torch: Any) -> Callable[[Iterable[Any]], None]:
    of_torch: Callable[[Any], None] = torch._C._increment_version

    def increment_each(tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            if not tensor.is_inference():
                of_torch(tensor)

    try:
        of_torch([])
    except Exception:  # older PyTorch takes one tensor
        return increment_each
    return of_torch
