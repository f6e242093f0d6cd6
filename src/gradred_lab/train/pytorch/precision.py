"""The arithmetic of forward and backward passes, by precision and kind of device."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def context(precision: str, device: str) -> contextlib.AbstractContextManager[Any]:
    """The context of the forward pass."""
    if precision == "fp32":
        return contextlib.nullcontext()
    found: contextlib.AbstractContextManager[Any] = torch.autocast(device, dtype=torch.bfloat16)
    return found


def text(precision: str, device: str) -> str:
    """What is computed in which numbers, by the settings of PyTorch."""
    if precision == "bf16":
        return "torch.autocast in bfloat16; parameters and gradients are float32"
    short = {
        "convolutions": torch.backends.cudnn.allow_tf32,
        "matrix products": torch.backends.cuda.matmul.allow_tf32,
    }
    names = [name for name, is_short in short.items() if is_short and device == "cuda"]
    return f"float32, {' and '.join(names)} in TF32 where the GPU has it" if names else "float32"
