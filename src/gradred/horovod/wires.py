"""Compressors that change no tensor, but what carries float32 between hosts."""

from __future__ import annotations

from typing import Any

from gradred import wire


class OverWire:
    """Sums and means of float32 are compressed between hosts; all ranks get the same bits.

    Args:
        form: a name of `gradred.WIRES`, or `"auto"`.

    Raises:
        gradred.UsageError: there is no such form.
    """

    def __init__(self, form: str) -> None:
        self.form = wire.require(form, "float32", "sum", "Compression.wire")


def wire_of(compressor: Any) -> str:
    """Return the form between hosts that a compressor asks for, as allreduces take it."""
    return compressor.form if isinstance(compressor, OverWire) else ""
