"""A front end of Horovod's functions for NumPy's arrays: what a front end needs, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradred.buffers.arrays import layout_of
from gradred.element_types import ITEMSIZES
from gradred.errors import UsageTypeError, explain
from gradred.horovod.front_end import FrontEnd
from gradred.tensors import Description

Array: TypeAlias = NDArray[Any]


def require_array(x: object, asked: str) -> Array:
    if isinstance(x, np.ndarray):
        return x
    found = f"a {type(x).__name__} is not an array"
    raise UsageTypeError(explain(asked, found, "Pass numpy.asarray(x)"))


class NumpyFrontEnd:
    """Its functions are described in `FrontEnd` and `Tensors`."""

    def describe(self, tensor: Array, asked: str) -> Description:
        require_array(tensor, asked)
        name = tensor.dtype.name
        if name not in ITEMSIZES:
            found = f"{self.type_name(tensor)} is not supported"
            raise ValueError(explain(asked, found, "Convert it first"))
        in_order = tensor.flags.c_contiguous
        return Description(tensor.ctypes.data, name, tensor.shape, True, in_order)

    def memory(self, tensor: Array) -> tuple[int, int]:
        return tensor.ctypes.data, tensor.nbytes

    def order_of_axes(self, tensor: Array) -> tuple[int, ...] | None:
        layout = layout_of(tensor.shape, tensor.strides, tensor.itemsize)
        return None if layout is None else layout.order

    def device(self, tensor: Array) -> str:
        return "host"

    def current_stream(self, tensor: Array) -> int:
        raise AssertionError("NumPy's arrays are in host memory")

    def type_name(self, tensor: Array) -> str:
        return f"numpy.ndarray of {tensor.dtype}"

    def why_not_dense(self, tensor: Array, in_place: bool) -> tuple[str, str]:
        found = f"the array is not dense: shape {tensor.shape}, strides {tensor.strides}"
        return found, "Pass numpy.ascontiguousarray(x)"

    def empty_like(self, tensor: Array, asked: str) -> Array:
        return np.empty_like(require_array(tensor, asked))

    def with_rows(self, tensor: Array, asked: str) -> Array:
        if require_array(tensor, asked).ndim == 0:
            raise ValueError(explain(asked, "the array has no axis", "Pass x.reshape(1)"))
        return np.ascontiguousarray(tensor)

    def of_memory(self, output: NDArray[np.uint8], like: Array, rows: int) -> Array:
        shape = (rows, *like.shape[1:])
        return np.empty(shape, like.dtype) if not output.size else _of(output, like).reshape(shape)

    def numbers_of(self, splits: Any) -> list[int]:
        if isinstance(splits, np.ndarray) and (splits.dtype != np.int32 or splits.ndim != 1):
            found = f"splits are {splits.dtype} of {splits.ndim} axes"
            raise ValueError(explain("alltoall", found, "Pass int32 of one axis"))
        return [int(rows) for rows in splits]

    def like_splits(self, numbers: Sequence[int], splits: Any) -> Array:
        return np.array(numbers, np.int32)

    def to_float64(self, elements: NDArray[np.uint8], like: Array) -> NDArray[np.float64]:
        return _of(elements, like).astype(np.float64)

    def from_float64(self, values: NDArray[np.float64], like: Array) -> NDArray[np.uint8]:
        return values.astype(like.dtype).view(np.uint8)

    def write(self, tensor: Array, elements: NDArray[np.uint8]) -> None:
        flat = np.lib.stride_tricks.as_strided(tensor, (tensor.size,), (tensor.itemsize,))
        flat[:] = _of(elements, tensor)


def _of(memory: NDArray[np.uint8], like: Array) -> Array:
    made: Array = memory.view(like.dtype)
    return made


FRONT_END: FrontEnd[Array] = NumpyFrontEnd()
