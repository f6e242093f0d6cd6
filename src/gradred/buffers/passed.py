"""What this rank has passed to a call about which the ranks disagree, for the error."""

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
    """A disagreement's text, and what this rank's arrays are: ranks compare little but hashes.

    Args:
        text: of the error.
        passed: arrays as the program or this package has them, in tuples or alone, the first of
            which is told; all else in there is passed over.
    """
    own = next(filter(None, map(_shown, _flat(passed))), None)
    return text if own is None else f"{text}. This rank passed {own}"


def _flat(x: Any) -> Iterator[Any]:
    """What is in tuples and lists, those of buffer specifications too."""
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
        except Error:  # no array, or one of a type that is the MPI's alone
            return None
    return arrays.text_of(x.dtype, x.shape, x.layout.order)
