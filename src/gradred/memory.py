"""Arrays in memory that suits gradred."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gradred import arrays
from gradred.arrays import ITEMSIZES
from gradred.errors import UsageTypeError, explain

if TYPE_CHECKING:
    from mpi4py import MPI


def empty(
    shape: int | Sequence[int], dtype: npt.DTypeLike = "float32", comm: MPI.Intracomm | None = None
) -> npt.NDArray[Any]:
    """A new NumPy array in C order that begins at the start of a page of memory.

    Local: other ranks need not call it.

    Args:
        shape: a length, or the lengths of the axes.
        dtype: NumPy's type or its name; `"bfloat16"` where ml_dtypes is installed.
        comm: the communicator on which it will be used; checked, and without effect today.

    Raises:
        gradred.UsageError: gradred does not reduce the type.

    Example:
        >>> import gradred
        >>> gradred.empty((2, 3)).shape
        (2, 3)
    """
    if comm is not None:
        from gradred import arguments  # initialises MPI, which a data loader's worker must not

        arguments.communicator(comm, "empty")
    kind = arrays.numpy_dtype("bfloat16") if dtype == "bfloat16" else np.dtype(dtype)
    if arrays.dtype_name(kind) is None:
        remedy = f"Use one of {', '.join(ITEMSIZES)}"
        raise UsageTypeError(explain(f"an array of {kind}", "gradred does not reduce it", remedy))
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = math.prod(lengths) * kind.itemsize
    memory = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
    begin = -int(memory.__array_interface__["data"][0]) % mmap.PAGESIZE
    return memory[begin : begin + nbytes].view(kind).reshape(lengths)


def zeros(
    shape: int | Sequence[int], dtype: npt.DTypeLike = "float32", comm: MPI.Intracomm | None = None
) -> npt.NDArray[Any]:
    """`empty`, filled with zeros.

    Example:
        >>> import gradred
        >>> gradred.zeros(2, "int64")
        array([0, 0])
    """
    new = empty(shape, dtype, comm)
    new.fill(0)
    return new


def empty_like(x: npt.NDArray[Any], comm: MPI.Intracomm | None = None) -> npt.NDArray[Any]:
    """`empty` of the shape, type and order of axes of a NumPy array.

    Example:
        >>> import numpy, gradred
        >>> gradred.empty_like(numpy.ones((2, 3), order="F")).strides
        (8, 16)
    """
    given = arrays.describe(x, "empty_like")
    order = given.layout.order
    return arrays.in_order(empty([given.shape[axis] for axis in order], x.dtype, comm), order)
