"""Smaller types on the way from rank to rank."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Both functions do nothing; subclass it for a compression of your own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What is sent, and what `decompress` needs beside it."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor in its own type."""
        del ctx
        return tensor


class NoneCompressor(Compressor):
    """Nothing is compressed."""


class _Cast(Compressor):
    """Floats travel in another type."""

    wire: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Floats in the type of the wire; others as they are."""
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor in its own type."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_Cast):
    """Floats travel as float16."""

    wire = torch.float16


class BF16Compressor(_Cast):
    """Floats travel as bfloat16."""

    wire = torch.bfloat16


class Compression:
    """What `compression=` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
