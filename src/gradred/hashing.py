"""`gradred.result_hash`: a hash of an array's bits, to compare runs and ranks."""

from __future__ import annotations

from typing import Any

from gradred import _core
from gradred.buffers import arrays


def result_hash(x: Any) -> int:
    """Return a 64-bit hash of the bytes of an array.

    Local: other ranks need not call it. Results of `allreduce`, `allgather` and `bcast` have the
    same hash on all ranks, on the host or on a GPU. Two runs with the same bits have the same
    hash. Different arrays have the same hash with a probability of 1 in 2^64. Each line of
    `GRADRED_RESULT_HASH` ends with this hash.

    For a GPU array it blocks until the work of the array's own stream is done and the bytes have
    been copied to the host. An array on the host is read once.

    Args:
        x: any dense array. Its bytes are hashed in the order of memory, so a transposed array has
            the hash of the original array.

    Returns:
        A number from 0 to 2^64 - 1; the file has it in the form `f"{result_hash(x):016x}"`.

    Raises:
        gradred.UsageError: no array, a type that gradred does not reduce, or gaps.
        gradred.DeviceError: a GPU, its driver or its memory failed.

    Example:
        >>> import numpy, gradred
        >>> x = numpy.arange(5.0)
        >>> gradred.result_hash(x) == gradred.result_hash(x.copy())
        True
        >>> gradred.result_hash(x) == gradred.result_hash(x + 1)
        False
    """
    x = x.detach() if getattr(x, "requires_grad", False) else x  # hashing changes no gradient
    found = arrays.describe(x, "result_hash of x")
    address, _owner = arrays.bytes_on_host(found)
    return _core.result_hash(address, found.nbytes)
