"""Arrays that others can read in one way only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Lender:
    """An array that others can read only by DLPack."""

    def __init__(self, x: npt.NDArray[Any]) -> None:
        self.x = x

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.x.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


class OldLender(Lender):
    """The same by a version of DLPack before 1.0, whose capsules do not say what is read-only."""

    def __dlpack__(self) -> Any:
        return self.x.__dlpack__()


class Interface:
    """An array in host memory that has the interface of those on GPUs."""

    def __init__(self, x: npt.NDArray[Any]) -> None:
        self.x = x
        self.__cuda_array_interface__ = x.__array_interface__


class Derived(np.ndarray[Any, np.dtype[Any]]):
    """A class derived from NumPy's that counts as numbers."""
