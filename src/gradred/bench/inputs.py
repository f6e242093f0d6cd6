"""Input vectors whose result is exact in every order of reduction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradred import ops
from gradred.bench.collectives import COLLECTIVES
from gradred.element_types import ELEMENT_TYPES, numpy_dtype

Array = NDArray[Any]

#: Length of the pattern that `Inputs` repeats: a prime, so that no chunk boundary hides an error.
PERIOD = 4099

#: Element types that can be measured, by gradred's names.
TYPES = tuple(name for name in ELEMENT_TYPES if name != "bool")

#: The elementwise functions of NumPy behind the operations; avg also divides.
FUNCTIONS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    name: getattr(np, ops.UFUNCS[name]) for name in ops.OPS
}


class Inputs:
    """Input vectors, different on each rank, whose result is exact in every order of reduction.

    The values are small integers. Partial sums stay below the first integer that the type cannot
    represent. If there are too many ranks for that, some ranks have a 0, different ones at each
    position. For a product, at each position at most one rank has a 2 and the others have a 1. For
    an average, the sums are multiples of the number of ranks. The sum is 0 if the type cannot
    represent that number (int8 with 128 ranks: its averages are 0 for any values).

    Args:
        dtype: element type of the vectors, one of `TYPES`.
        op: one of `FUNCTIONS`.
        size: number of ranks.
    """

    def __init__(self, dtype: str, op: str, size: int) -> None:
        kind = numpy_dtype(dtype)
        self._patterns = [pattern.astype(kind) for pattern in _patterns(dtype, op, size)]
        result = self._patterns[0]
        for pattern in self._patterns[1:]:
            result = FUNCTIONS[op](result, pattern).astype(kind)
        # All values are real; NumPy's complex quotient is not always the nearest value.
        self._result = (result.real / size).astype(kind) if op == "avg" else result

    def fill(self, vector: Array, rank: int) -> None:
        """Write the first `len(vector)` elements of the input of `rank` into `vector`."""
        for start in range(0, len(vector), PERIOD):
            piece = vector[start : start + PERIOD]
            piece[:] = self._patterns[rank][: len(piece)]

    def result(self, collective: str, count: int, rank: int) -> Array:
        """Return the result on `rank` of a collective for a row of `count` elements.

        `count` are the elements of the row, as the table of collectives counts them.
        """
        size = len(self._patterns)
        if collective == "allgather":
            return np.concatenate([np.resize(pattern, count) for pattern in self._patterns])
        if collective == "bcast":
            return np.resize(self._patterns[0], count)
        whole = np.resize(self._result, count)
        block = count // size
        is_split = COLLECTIVES[collective].is_split
        return whole[rank * block : (rank + 1) * block] if is_split else whole


def _patterns(dtype: str, op: str, size: int) -> list[NDArray[np.int64]]:
    rng = np.random.default_rng(size)
    if op == "prod":
        holder = rng.integers(0, size + 1, PERIOD)
        return [1 + (holder == rank) for rank in range(size)]
    if op in ("land", "lor", "lxor"):
        return list(rng.integers(0, 1, (size, PERIOD), endpoint=True))
    row = ELEMENT_TYPES[dtype]
    largest = 2**row.digits - (row.kind in ("signed", "unsigned"))  # all integers up to it exist
    lowest = 0 if dtype.startswith("uint") else -largest
    if op == "sum":
        return list(_summands(rng, size, lowest, largest))
    if op == "avg":
        return list(_averaged(rng, size, lowest, largest))
    return list(rng.integers(max(lowest, -100), min(largest, 100), (size, PERIOD), endpoint=True))


def _summands(rng: np.random.Generator, size: int, lowest: int, largest: int) -> NDArray[np.int64]:
    """Return a row for each rank; at each position all partial sums are within the bounds."""
    high = min(100, max(1, largest // size))
    rows = rng.integers(max(lowest, -high), high, (size, PERIOD), endpoint=True)
    rows[_turns(size) >= largest] = 0  # if not even a one of each rank fits into the type
    return rows


def _averaged(rng: np.random.Generator, size: int, lowest: int, largest: int) -> NDArray[np.int64]:
    """Return such rows whose sum is a multiple of the number of ranks, if one fits."""
    if largest >= 2 * size:
        rows = _summands(rng, size, max(lowest, size - largest), largest - size)
        rows[-1] += -rows.sum(axis=0) % size
        return rows
    turns = _turns(size)
    if size <= largest:  # ones, or a two and a zero among them; negative at every other position
        rows = np.ones((size, PERIOD), np.int64)
        if size < largest:
            rows += (turns == 0).astype(np.int64) - (turns == 1)
        if lowest < 0:
            rows[:, 1::2] *= -1
        return rows
    if lowest == 0:  # with so many ranks the average is less than 1 for any values
        return _summands(rng, size, lowest, largest)
    rows = np.where(turns % 2, -1, 1)  # they cancel
    rows[turns >= 2 * min(largest, size // 2)] = 0
    return rows


def _turns(size: int) -> NDArray[np.int64]:
    """Return the numbers 0 to size - 1 at each position, rotated by the position."""
    return (np.arange(size)[:, None] - np.arange(PERIOD)) % size
