"""Describe this rank's arrays in the error of a call on which the ranks disagree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from gradred.buffers import arrays
from gradred.buffers.arrays import Array
from gradred.buffers.messages import Message
from gradred.errors import Error, UsageError, usage_error


def disagreement(text: str, passed: object) -> UsageError:
    """Make the error of a call on which the ranks disagree, of the class that fits in the MPI.

    The ranks themselves compare hashes, so a description of this rank's array is added.

    The first array of the program or of this package in `passed`, in tuples or alone, is described.
    """
    own = next(filter(None, map(_shown, _flat(passed))), None)
    whole = text if own is None else f"{text}. This rank passed {own}"
    return usage_error(whole, _mpi_class(text))


# One of the two calls in the text of csrc/base/signature.cc: kind, elements, and the operation.
_CALL = re.compile(r"for (\w+) of (\d+ \w+)( with \w+)?")


def _mpi_class(text: str) -> str:
    if "with another root" in text:
        return "ERR_ROOT"
    calls = _CALL.findall(text)
    if len(calls) != 2 or calls[0][0] != calls[1][0]:
        return "ERR_OTHER"
    if calls[0][1] != calls[1][1]:
        return "ERR_TRUNCATE"
    return "ERR_OP" if calls[0][2] != calls[1][2] else "ERR_OTHER"


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
