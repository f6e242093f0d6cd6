"""Refuse arrays whose elements have more meaning than their numbers: masks, units, labels.

gradred reads bare numbers. If these alone would mean something else than the array, or do not
exist yet, it refuses the array by name and says what to pass. It imports none of these libraries:
a program that passes such an array has imported the library.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from gradred.errors import UsageTypeError


class _Kind(NamedTuple):
    has: str
    """Why it is more, or less, than numbers; begins with a verb."""
    remedy: str
    """How to get plain numbers from it."""
    shares: bool = False
    """Whether the plain numbers share the array's memory, so that a result may go there."""


_MASK = "has a mask, which gradred cannot reduce or move"
_UNIT = "has a unit, which gradred cannot compare or convert"
_LABELS = "has labels, which gradred cannot match between ranks"
_MISSING = "may miss elements, which gradred cannot leave out"
_SPARSE = "does not hold its zeros"
_ONE_UNIT = "in one unit on all ranks"
_FILLED = "Pass x.filled(value), with the operation's neutral value"

# By library and class, or by the beginning of the class's full name; derived classes match too.
# The first matching row applies: astropy has arrays with a mask and a unit.
_KINDS = {
    "numpy.ma": _Kind(_MASK, _FILLED),
    "astropy.utils.masked": _Kind(_MASK, _FILLED),
    "torch.masked": _Kind(_MASK, "Pass x.to_tensor(value), with the operation's neutral value"),
    "astropy.units": _Kind(_UNIT, f"Pass x.value, {_ONE_UNIT}", shares=True),
    "unyt": _Kind(_UNIT, f"Pass x.ndview, {_ONE_UNIT}", shares=True),
    "pint": _Kind(_UNIT, f"Pass x.magnitude, {_ONE_UNIT}", shares=True),
    "quantities": _Kind(_UNIT, f"Pass x.magnitude, {_ONE_UNIT}", shares=True),
    "astropy.table": _Kind(
        "may have a unit, which gradred cannot compare or convert",
        f"Pass numpy.asarray(x), {_ONE_UNIT}",
        shares=True,
    ),
    "pandas.ExtensionArray": _Kind(
        _MISSING, "Pass x.to_numpy('float64', na_value=value), with the operation's neutral value"
    ),
    "pandas": _Kind(
        _LABELS, "Pass x.to_numpy('float64'), with na_value= where elements are missing"
    ),
    "polars": _Kind(_MISSING, "Pass x.to_numpy(), after x.fill_null(value)"),
    "xarray.Dataset": _Kind(_LABELS, "Pass x[name].to_numpy() of each variable"),
    "xarray": _Kind(_LABELS, "Pass x.to_numpy()"),
    "awkward": _Kind(
        "may have rows of several lengths, and miss elements",
        "Pass awkward.to_numpy(x), of rows of one length",
    ),
    "dask": _Kind("is yet to be computed", "Pass x.compute()"),
    "scipy.sparse": _Kind(_SPARSE, "Pass x.toarray()"),
    "jax.Tracer": _Kind(
        "has no elements, since JAX traces a function",
        "Call gradred outside of jax.jit, grad and vmap, or inside of jax.jit by "
        "jax.experimental.io_callback(..., ordered=True)",
    ),
    "tensorflow.SymbolicTensor": _Kind(
        "has no elements, since TensorFlow traces a function",
        "Call gradred outside of tf.function, or inside of it by "
        "tf.numpy_function(gradred.allreduce, [x], x.dtype)",
    ),
    "tensorflow.Variable": _Kind(
        "is changed by TensorFlow alone", "Pass x.numpy(), and call x.assign(result)"
    ),
    "tensorflow.IndexedSlices": _Kind(_SPARSE, "Pass tf.convert_to_tensor(x).numpy()"),
    "tensorflow.SparseTensor": _Kind(_SPARSE, "Pass tf.sparse.to_dense(x).numpy()"),
    "tensorflow.RaggedTensor": _Kind(
        "has rows of several lengths", "Pass x.flat_values.numpy(), of the same rows on all ranks"
    ),
}


def refuse(x: Any, asked: str, *, is_result: bool = False) -> None:
    """Raise UsageTypeError for an array that is more than its numbers.

    `x` is anything but a plain NumPy array. `asked` is what the caller wants to do, for messages.
    """
    found = _kind_of(type(x))  # type: ignore[arg-type] # mypy considers types unhashable
    if found is None:
        return
    remedy = found.remedy
    if is_result and not found.shares:
        remedy = "Pass a plain array in its place"
    raise UsageTypeError(asked, f"the {_short_name(type(x))} {found.has}", remedy)


@functools.lru_cache(maxsize=256)
def _kind_of(of: type) -> _Kind | None:
    """Return how arrays of this type differ from numbers; None if gradred knows no difference."""
    names = [f"{_short_name(each)}." for each in of.__mro__]
    names += [f"{each.__module__}.{each.__qualname__}." for each in of.__mro__]
    for begins, kind in _KINDS.items():
        if any(name.startswith(f"{begins}.") for name in names):
            return kind
    return _own_arithmetic(of)


def _short_name(of: type) -> str:
    """Return the names of library and class."""
    return f"{of.__module__.partition('.')[0]}.{of.__qualname__}"


def _own_arithmetic(of: type) -> _Kind | None:
    """Find a class derived from NumPy's that adds elements in its own way, as those with units do.

    Other derived classes count as numbers: numpy.memmap, numpy.matrix, arrays with notes.
    """
    if not issubclass(of, np.ndarray):
        return None
    for name in ("__array_ufunc__", "__add__"):
        if getattr(of, name) is not getattr(np.ndarray, name):
            has = f"computes in its own way ({name}), which gradred does not know"
            return _Kind(has, "Pass numpy.asarray(x) if its bare numbers are meant", shares=True)
    return None
