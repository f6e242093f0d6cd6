"""What a front end provides, so that `collectives.Collectives` serves its framework.

These are six functions: three of `Tensors` and three of `FrontEnd`. The functions below them make
results out of these, for all frameworks. `gradred.torch.front_end` is the implementation for
PyTorch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from gradred.element_types import ITEMSIZES
from gradred.errors import UsageError, explain
from gradred.tensors import Description, Tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

FRONT_ENDS = ("torch", "tensorflow")
"""Frameworks that Horovod's own names serve: `horovod.NAME` is `gradred.NAME` under the alias.

Such a module has functions `gpu_available` and `cuda_built`."""

TensorT = TypeVar("TensorT")


class FrontEnd(Tensors[TensorT], Protocol[TensorT]):
    """A framework's tensors, for Horovod's operations.

    `Tensors` has the questions that submitting a tensor asks: its description, its device and the
    device's current stream. The functions here make tensors of the framework. Tensors of one axis
    have a method `tolist`, as NumPy's arrays have.
    """

    def empty_like(self, tensor: TensorT, asked: str) -> TensorT:
        """Make a tensor for a result: the same type, shape, order of axes and device.

        Args:
            tensor: the tensor.
            asked: name of the call, for error messages.

        Raises:
            gradred.UsageError: `tensor` is not a tensor.
        """

    def converted(self, tensor: TensorT, dtype: str) -> TensorT:
        """Make a copy in C order of the type `dtype`, on the same device.

        A tensor of this type and order may be returned as it is.

        Args:
            tensor: a tensor that `describe` accepts.
            dtype: gradred's name of an element type of the framework.
        """

    def of_memory(
        self, memory: NDArray[np.uint8], dtype: str, shape: Sequence[int], like: TensorT | None
    ) -> TensorT:
        """Make a tensor in C order of bytes in host memory.

        Args:
            memory: the bytes of all elements. The tensor may keep this array, which nobody else
                uses any more.
            dtype: gradred's name of the elements' type.
            shape: lengths of the axes.
            like: a tensor on the device of the new one. None: host memory.
        """


class Rows(NamedTuple):
    """A tensor whose first axis is divided among the ranks, or gathered from them."""

    tensor: Any
    """The tensor in C order."""
    found: Description

    def of(self, front_end: FrontEnd[Any], output: NDArray[np.uint8], rows: int) -> Any:
        """Make a tensor like this one, with other rows, whose bytes the engine has allocated."""
        shape = (rows, *self.found.shape[1:])
        return front_end.of_memory(output, self.found.dtype, shape, self.tensor)


def with_rows(front_end: FrontEnd[TensorT], tensor: TensorT, asked: str) -> Rows:
    """Describe a tensor with rows. It is copied if it is not in C order.

    Raises:
        gradred.UsageError: it is not a tensor.
        ValueError: it has no axis, or the engine does not support it.
    """
    found = front_end.describe(tensor, asked)
    if not found.shape:
        raise ValueError(explain(asked, "the tensor has no axis", "Pass a tensor of one axis"))
    if found.strides is None:
        return Rows(tensor, found)
    return Rows(front_end.converted(tensor, found.dtype), found)


def splits_of(front_end: FrontEnd[Any], splits: Any) -> tuple[list[int], Any]:
    """Read the argument `splits` of an alltoall, a tensor or a sequence of numbers.

    Returns:
        The numbers, and `splits` itself if it is a tensor, else None.

    Raises:
        ValueError: it is a tensor, but not of int32 and one axis.
    """
    try:
        found = front_end.describe(splits, "alltoall")
    except UsageError:  # a sequence
        return [int(rows) for rows in splits], None
    if found.dtype != "int32" or len(found.shape) != 1:
        what = f"splits are {found.dtype} of {len(found.shape)} axes"
        raise ValueError(explain("alltoall", what, "Pass int32 of one axis"))
    return [int(rows) for rows in splits.tolist()], splits


def cast(
    front_end: FrontEnd[Any], elements: NDArray[np.uint8], source: str, target: str
) -> NDArray[np.uint8]:
    """Convert contiguous elements on the host from one type to another, as the framework does."""
    count = elements.nbytes // ITEMSIZES[source]
    made = front_end.converted(front_end.of_memory(elements, source, (count,), None), target)
    found = front_end.describe(made, "a conversion of elements")
    result = np.empty(found.nbytes, np.uint8)
    ctypes.memmove(result.ctypes.data, found.address, found.nbytes)
    return result
