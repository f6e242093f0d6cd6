"""Compression of tensors for sending, by conversion to a smaller type."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gradred.horovod.wires import OverWire


class Compressor:
    """Compressor that changes nothing. Derive from it to write another one."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and the context that `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Convert a received tensor to its original type."""
        return tensor


class NoneCompressor(Compressor):
    """Tensors are sent as they are."""


class _Cast(Compressor):
    """Floating-point tensors are sent in another type."""

    wire: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Convert a floating-point tensor to the type `wire`. Others are sent as they are."""
        if not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Convert a received tensor to its original type."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_Cast):
    """Floating-point tensors are sent as float16."""

    wire = tf.float16


class BF16Compressor(_Cast):
    """Floating-point tensors are sent as bfloat16."""

    wire = tf.bfloat16


class WireCompressor(OverWire, Compressor):
    """`OverWire` with methods of a compressor."""


class Compression:
    """The values that `compression=` accepts."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

    @staticmethod
    def wire(form: str = "auto") -> WireCompressor:
        """float32 in a form of `gradred.WIRES` between hosts, as it is inside of them."""
        return WireCompressor(form)
