"""Inputs whose reductions are exact in every order of the ranks, and the expected results.

Values are integers so small that the type holds every sum of eight ranks exactly. For products they
are powers of two (times powers of i in complex types). Integers wrap in the same way in any order.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradred import OPS, _core
from gradred.element_types import ELEMENT_TYPES, ITEMSIZES, numpy_dtype
from gradred.ops import UFUNCS

Array = NDArray[Any]

DTYPES = tuple(ITEMSIZES)
FACTOR = 0.5  # of premul: halves of small integers are exact, too

_FUNCTIONS: dict[str, np.ufunc] = {op: getattr(np, name) for op, name in UFUNCS.items()}


def ops_of(dtype: str) -> list[str]:
    """The operations for elements of this type."""
    return [op for op in (*OPS, "premul") if _core.has_reduction(op, dtype)]


def make_input(rank: int, count: int, dtype: str, op: str = "sum") -> Array:
    """One rank's vector, with other values on each rank and in each place."""
    index = np.arange(count)
    mixed = index * 7 + rank * 5 + index // 11
    kind = numpy_dtype(dtype)
    values: Array = mixed % 8 - 3
    if op == "prod":
        values = np.array([1, 1j, -1, 2])[mixed % 4] if kind.kind == "c" else 1 + mixed % 2
    elif kind.kind == "c":
        values = values + 1j * (mixed // 3 % 8 - 3)
    elif kind.kind == "b":
        values = mixed % 3 > 0
    elif kind.kind == "u":
        values = mixed % 8
    elif ELEMENT_TYPES[dtype].digits < 6:
        values = mixed % 3 - 1
    return values.astype(kind)


def reduced(size: int, count: int, dtype: str, op: str = "sum") -> Array:
    """The reduction of the vectors of `size` ranks, in NumPy."""
    vectors = [make_input(rank, count, dtype, op) for rank in range(size)]
    kind = vectors[0].dtype
    if op == "premul":
        vectors = [_scaled(vector, FACTOR) for vector in vectors]
    if op in ("land", "lor", "lxor"):  # the result of one rank alone is 0 or 1, too
        vectors = [(vector != 0).astype(kind) for vector in vectors]
    total: Array = functools.reduce(lambda a, b: _FUNCTIONS[op](a, b).astype(kind), vectors)
    return _scaled(total, 1 / size, size) if op == "avg" else total


def _scaled(vector: Array, factor: float, divisor: int = 0) -> Array:
    """The vector times the factor (or over the divisor).

    Integers are computed in float64 and truncated toward zero.
    """
    if vector.dtype.kind in "iu":
        exact = vector.astype(np.float64)
        return np.trunc(exact / divisor if divisor else exact * factor).astype(vector.dtype)
    if vector.dtype.kind == "c":  # part by part: NumPy multiplies complex numbers by a reciprocal
        parts = vector.view(f"f{vector.dtype.itemsize // 2}")
        return _scaled(parts, factor, divisor).view(vector.dtype)
    wide = vector.astype(np.float32) if vector.dtype.itemsize <= 2 else vector
    kind = wide.dtype.type
    scaled: Array = wide / kind(divisor) if divisor else wide * kind(factor)
    return scaled.astype(vector.dtype)


def differences(found: Array, expected: Array, title: str) -> list[str]:
    """Empty if the arrays are equal, otherwise one line; it does not raise, so ranks keep step."""
    if found.dtype == expected.dtype and np.array_equal(found, expected):
        return []
    where = np.flatnonzero(np.ravel(found != expected))[:3].tolist()
    return [f"{title}: at {where} {np.ravel(found)[where]}, not {np.ravel(expected)[where]}"]
