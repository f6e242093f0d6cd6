"""A number that stands for an array's bits, by which runs and ranks are compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradred import _core
from gradred.buffers import arrays
from gradred.buffers.cuda_interface import placement


def result_hash(x: Any) -> int:
    """Hash the bytes of an array, 64 bits of them.

    Local: other ranks need not call it. Equal on all ranks for what `allreduce`, `allgather` and
    `bcast` have left there, wherever it lies, and equal in two runs that gave the same bits; arrays
    that differ have the same hash by an accident of 1 in 2^64. It is what a line of
    `GRADRED_RESULT_HASH` ends with.

    Blocks until the work of a GPU array's own stream is done and its bytes are on the host. An
    array on the host is read once.

    Args:
        x: any dense array. Its bytes count in the order of memory: those of a transposed array are
            those of the array.

    Returns:
        A number from 0 to 2^64 - 1; `f"{result_hash(x):016x}"` is how the file shows it.

    Raises:
        gradred.UsageError: no array, a type that gradred does not reduce, gaps between elements.
        gradred.DeviceError: a GPU, its driver or its memory failed.

    Example:
        >>> import numpy, gradred
        >>> x = numpy.arange(5.0)
        >>> gradred.result_hash(x) == gradred.result_hash(x.copy())
        True
        >>> gradred.result_hash(x) == gradred.result_hash(x + 1)
        False
    """
    found = arrays.describe(_without_history(x), "result_hash of x")
    if found.memory is None:
        return _core.result_hash(found.address, found.nbytes)
    copied = np.empty(found.nbytes, np.uint8)
    address = int(copied.ctypes.data)
    _core.copy_bytes(address, found.address, found.nbytes, placement(None, found))
    return _core.result_hash(address, found.nbytes)


def _without_history(x: Any) -> Any:
    """A tensor of which autograd knows nothing: to look at one changes no gradient."""
    return x.detach() if getattr(x, "requires_grad", False) else x
