"""A front end of Horovod's functions for NumPy's arrays: what a front end needs, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradred.element_types import ITEMSIZES, numpy_dtype
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
            found = f"numpy.ndarray of {tensor.dtype} is not supported"
            raise ValueError(explain(asked, found, "Convert it first"))
        strides = None if tensor.flags.c_contiguous else tensor.strides
        return Description(tensor.ctypes.data, name, tensor.shape, True, strides)

    def device(self, tensor: Array) -> str:
        return "host"

    def current_stream(self, tensor: Array) -> int:
        raise AssertionError("NumPy's arrays are in host memory")

    def empty_like(self, tensor: Array, asked: str) -> Array:
        return np.empty_like(require_array(tensor, asked))

    def converted(self, tensor: Array, dtype: str) -> Array:
        return np.ascontiguousarray(tensor, numpy_dtype(dtype))

    def of_memory(
        self, memory: NDArray[np.uint8], dtype: str, shape: Sequence[int], like: Array | None
    ) -> Array:
        made: Array = memory.view(numpy_dtype(dtype)).reshape(shape)
        return made


FRONT_END: FrontEnd[Array] = NumpyFrontEnd()
