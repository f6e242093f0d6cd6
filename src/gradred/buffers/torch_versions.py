"""Telling PyTorch's autograd that a call writes a tensor.

A backward pass that needs the tensor's elements from before the call then raises an error.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

from gradred import _core


@functools.cache
def know(torch: Any) -> Callable[[Iterable[Any]], None]:
    """Let the core look at PyTorch's own tensors by itself, and report its writes to autograd.

    Returns the function that reports writes to several tensors.
    """
    increment = _increment_of(torch)
    _core.know_tensors(torch.Tensor, torch.nn.Parameter, increment, *functions_of(torch))
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


_HEADER = object.__basicsize__
"""Bytes before the `at::Tensor` in a tensor object, as PyTorch 2.13 has it."""

_FUNCTIONS = (
    ("_ZN2at6native6is_negERKNS_6TensorE", ctypes.c_bool),
    ("_ZN2at6native12is_inferenceERKNS_6TensorE", ctypes.c_bool),
    ("_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE", None),
)


def functions_of(torch: Any) -> tuple[int, ...]:
    """Find the C++ functions of PyTorch that answer without a call of Python.

    Each is tried with tensors whose answers are known.

    Returns:
        The arguments of `_core.know_tensors` after the third. Empty: this PyTorch has others.
    """
    try:
        library = ctypes.CDLL("libtorch_cpu.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        found = [
            ctypes.CFUNCTYPE(result, ctypes.c_void_p)((name, library))
            for name, result in _FUNCTIONS
        ]
        is_right = _try(torch, *found)
    except Exception:  # the program has other modes of PyTorch on, or a stand-in for it
        return ()
    if not is_right:
        return ()
    return (_HEADER, *(ctypes.cast(one, ctypes.c_void_p).value or 0 for one in found))


def _try(torch: Any, is_negated: Any, is_inference: Any, increment: Any) -> bool:
    """Return whether the functions answer as they should of tensors made for this."""
    with torch.inference_mode():
        inference = torch.zeros(2, device="cpu")
    with torch.inference_mode(False):
        plain = torch.zeros(2, device="cpu")
        negated = torch._neg_view(plain)
    tensors = (plain, inference, negated)
    if any(ctypes.c_size_t.from_address(id(x) + _HEADER).value != x._cdata for x in tensors):
        return False
    before = plain._version
    increment(id(plain) + _HEADER)
    answers = [(is_negated(id(x) + _HEADER), is_inference(id(x) + _HEADER)) for x in tensors]
    right = [(False, False), (False, True), (True, False)]
    return answers == right and plain._version == before + 1
