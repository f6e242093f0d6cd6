"""Compression of tensors for sending, by conversion to a smaller type."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Compressor that changes nothing. Derive from it to write another one."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor to send, and the context that `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Convert a received tensor to its original type."""
        del ctx
        return tensor


class NoneCompressor(Compressor):
    """Tensors are sent as they are."""


class _Cast(Compressor):
    """Floating-point tensors are sent in another type."""

    wire: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Convert a floating-point tensor to the type `wire`. Others are sent as they are."""
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Convert a received tensor to its original type."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_Cast):
    """Floating-point tensors are sent as float16."""

    wire = torch.float16


class BF16Compressor(_Cast):
    """Floating-point tensors are sent as bfloat16."""

    wire = torch.bfloat16


class Compression:
    """The values that `compression=` accepts."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
