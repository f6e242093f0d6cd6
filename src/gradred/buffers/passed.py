"""Describe this rank's arrays in the error of a call on which the ranks disagree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from gradred.buffers import arrays
from gradred.buffers.arrays import Array
from gradred.buffers.messages import Message
from gradred.errors import Error


def with_passed(text: str, passed: object) -> str:
    """Add a description of this rank's array to an error; the ranks themselves compare hashes.

    Args:
        text: the error's text.
        passed: arrays of the program or of this package, in tuples or alone. The first array is
            described; all else is ignored.
    """
    own = next(filter(None, map(_shown, _flat(passed))), None)
    return text if own is None else f"{text}. This rank passed {own}"


def _flat(x: Any) -> Iterator[Any]:
    """Yield the items of nested tuples and lists, buffer specifications included."""
    if isinstance(x, (tuple, list)):
        for part in x:
            yield from _flat(part)
    elif isinstance(x, Message):
        yield from _flat(x.owner)
    else:
        yield x


def _shown(x: Any) -> str | None:
    if not isinstance(x, Array):
        if x is None or x is MPI.IN_PLACE or isinstance(x, (str, bytes, int, float, np.generic)):
            return None
        try:
            x = arrays.describe(x, "")
        except Error:  # no array, or an array of a type that only the MPI knows
            return None
    return arrays.text_of(x.dtype, x.shape, x.layout.order)
