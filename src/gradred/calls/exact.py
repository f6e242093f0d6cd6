"""`gradred.exact_sum`: the sum over all elements of all ranks with one rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gradred import _core
from gradred.buffers import arrays
from gradred.calls.functions import allreduce
from gradred.element_types import numpy_dtype
from gradred.errors import UsageElementError

if TYPE_CHECKING:
    from mpi4py import MPI


def exact_sum(x: Any, *, comm: MPI.Intracomm | None = None) -> np.floating[Any]:
    """Return the correctly rounded sum of all elements of all ranks' arrays.

    Collective: blocks until all ranks have called it. The result is the number of the type that is
    nearest to the sum of real numbers, ties to even: the same bits on all ranks, for every order of
    the elements, split among ranks, and number of ranks. Infinities, NaN and signs of zeros are
    those of IEEE 754; sums in between may be larger than any number. No elements: 0.

    Each rank adds its elements in a fixed-point number with a place for each bit that a float may
    have (Kulisch), by extraction of their upper bits (Rump, Ogita and Oishi, 2008). One allreduce
    of 73 whole numbers, 18 for float32, adds those of all ranks.

    Args:
        x: this rank's array, dense, of any shape, which may differ between ranks. Its type,
            float32 or float64, must not. An array on a GPU is copied to the host.
        comm: the communicator; None is MPI.COMM_WORLD.

    Returns:
        A NumPy number of the type of `x`.

    Raises:
        gradred.UsageError: no array, another type, gaps between elements; or the ranks disagree.
        gradred.PeerLost: another rank has ended.
        gradred.TimeoutError: a rank has not called it within `GRADRED_TIMEOUT`.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.exact_sum(numpy.array([1e100, 1.0, -1e100]), comm=MPI.COMM_SELF)
        np.float64(1.0)
    """
    x = x.detach() if getattr(x, "requires_grad", False) else x  # the sum is no part of a graph
    found = arrays.describe(x, "exact_sum of x")
    if found.dtype not in ("float32", "float64"):
        remedy = "Convert it to float32 or float64"
        raise UsageElementError("exact_sum", f"x is of type {found.dtype}", remedy)
    address, _owner = arrays.bytes_on_host(found)
    words = np.frombuffer(_core.exact_words(address, found.count, found.dtype), np.int64)
    total = _core.exact_value(allreduce(words, comm=comm).tobytes(), found.dtype)
    rounded: np.floating[Any] = numpy_dtype(found.dtype).type(total)
    return rounded
