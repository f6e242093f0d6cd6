"""Exact inputs for the tests on threads, and the expected results of the collectives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradred.element_types import numpy_dtype
from gradred.ops import UFUNCS
from gradred.schedules import Schedule

Array = NDArray[Any]


def make_inputs(size: int, count: int, dtype: str, op: str) -> list[Array]:
    """One vector per rank, of integers so small that every order of reduction is exact."""
    index = np.arange(count)
    inputs = []
    for rank in range(size):
        mixed = index * 7 + rank * 5 + index // 11
        inputs.append((1 + mixed % 2 if op == "prod" else mixed % 8).astype(numpy_dtype(dtype)))
    return inputs


def reduction(inputs: list[Array], op: str) -> Array:
    """The reduction of all inputs, in NumPy."""
    result = inputs[0].copy()
    for array in inputs[1:]:
        result = getattr(np, UFUNCS[op])(result, array).astype(result.dtype)
    return result


def owners(schedule: Schedule, count: int, slices: int) -> NDArray[np.int64]:
    """The rank that owns each element in a reduce-scatter or allgather, slice by slice."""
    return np.concatenate(
        [
            np.repeat(
                np.arange(schedule.chunks) * schedule.size // schedule.chunks,
                _lengths(length, schedule.chunks),
            )
            for length in _lengths(count, slices)
        ]
    )


def _lengths(count: int, parts: int) -> list[int]:
    return [len(part) for part in np.array_split(np.empty(count), parts)]


def view(arrays: list[Array]) -> list[Array]:
    """The same memory as bytes, because some element types have no buffer format."""
    return [array.view(np.uint8) for array in arrays]
