"""The result of the rank that has nothing to reduce: the value that changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradred import _core, ops
from gradred.buffers.arrays import Array
from gradred.element_types import numpy_dtype


def on_host(given: Array, stream: int | None) -> Array:
    """Copy an array to host memory, because the result replaces it."""
    bytes_of = np.empty(max(given.nbytes, 1), np.uint8)
    where = _core.placement(None, given, stream, host_waits=True)
    _core.copy_bytes(bytes_of.ctypes.data, given.address, given.nbytes, where)
    return Array(
        bytes_of.ctypes.data, given.dtype, given.shape, given.layout, writable=True, owner=bytes_of
    )


def write(op: str, result: Array, stream: int | None) -> None:
    """Fill the result with the value that changes nothing when it is reduced with another."""
    value = _neutral(op, result.dtype)
    data = np.zeros(max(result.nbytes, 1), np.uint8)
    if value is not None:
        data[: result.nbytes] = np.full(result.count, value).view(np.uint8)
    where = _core.placement(None, result, stream, host_waits=True)
    _core.copy_bytes(result.address, data.ctypes.data, result.nbytes, where)


def _neutral(op: str, dtype: str) -> Any:
    """Return that value; None: all its bytes are zero."""
    if op not in ops.UFUNCS or op in ("sum", "avg", "premul"):
        return None
    identity = getattr(np, ops.UFUNCS[op]).identity
    kind = numpy_dtype(dtype)
    if identity is not None:
        return np.array(identity).astype(kind)[()] if identity else None
    worst = np.array(np.inf if op == "min" else -np.inf)
    if np.issubdtype(kind, np.integer):
        return kind.type(np.iinfo(kind).max if op == "min" else np.iinfo(kind).min)
    made = worst.astype(kind)[()]
    if kind == np.bool_ or np.isinf(made.astype(np.float64)):
        return np.bool_(op == "min") if kind == np.bool_ else made
    import ml_dtypes  # a type of eight bits without infinities

    limits: Any = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    return limits.max if op == "min" else limits.min
