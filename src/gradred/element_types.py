"""The element types that gradred reduces, from the core's table in csrc/base/types.h."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from gradred import _core
from gradred.errors import UsageError


class ElementType(NamedTuple):
    """One row of the table."""

    name: str
    itemsize: int
    kind: str
    """The kind: signed, unsigned, bool, real or complex."""
    digits: int
    """The type holds every integer up to `2**digits`; integer types up to one less."""
    dlpack: int
    """DLPack's code of the kind."""
    is_numpys: bool
    """Whether NumPy has the type; otherwise ml_dtypes has it."""


ELEMENT_TYPES: Final = {row[0]: ElementType(*row) for row in _core.element_types()}
ITEMSIZES: Final = {name: row.itemsize for name, row in ELEMENT_TYPES.items()}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's type of this name.

    Raises:
        gradred.UsageError: the type is in ml_dtypes, which is not installed.
    """
    if ELEMENT_TYPES[name].is_numpys:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        found = "NumPy has no such type by itself"
        remedy = "Install the package that brings it: pip install ml_dtypes"
        raise UsageError(f"a NumPy array of {name}", found, remedy) from None
    made: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return made
