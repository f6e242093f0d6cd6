"""What a front end provides, so that `collectives.Collectives` serves its framework.

`gradred.torch.front_end` is the implementation for PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gradred.tensors import Tensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FRONT_ENDS = ("torch", "tensorflow")
"""Frameworks that Horovod's own names serve: `horovod.NAME` is `gradred.NAME` under the alias.

Such a module has functions `gpu_available` and `cuda_built`."""

TensorT = TypeVar("TensorT")


class FrontEnd(Tensors[TensorT], Protocol[TensorT]):
    """A framework's tensors, for Horovod's operations.

    `Tensors` has the questions that submitting a tensor asks: its description, memory, order of
    axes, device, current stream and type's name. The functions here make tensors of results.

    Functions that take memory take it as arrays of uint8 in host memory. They may keep such an
    array, which the engine does not use again.
    """

    def empty_like(self, tensor: TensorT, asked: str) -> TensorT:
        """Make a tensor for a result: the same type, shape, order of axes and device.

        Args:
            tensor: the tensor.
            asked: name of the call, for error messages.

        Raises:
            gradred.UsageError: `tensor` is not a tensor.
        """

    def with_rows(self, tensor: TensorT, asked: str) -> TensorT:
        """The tensor if its elements lie in the order of their indices, else such a copy.

        A tensor that `describe` refuses may be returned as it is.

        Args:
            tensor: the tensor.
            asked: name of the call, for error messages.

        Raises:
            gradred.UsageError: it is not a tensor.
            ValueError: it has no axis.
        """

    def of_memory(self, output: NDArray[np.uint8], like: TensorT, rows: int) -> TensorT:
        """Make a tensor of memory that the engine allocated for a result.

        Args:
            output: the result's bytes.
            like: the result has its device, its type, and all of its axes but the first.
            rows: length of the first axis.
        """

    def numbers_of(self, splits: Any) -> list[int]:
        """Read the argument `splits` of an alltoall: a tensor, or a sequence of numbers.

        Raises:
            ValueError: it is a tensor, but not of int32 and one axis.
        """

    def like_splits(self, numbers: Sequence[int], splits: Any) -> TensorT:
        """Make an int32 tensor of one axis, on the device of `splits` if that is a tensor."""

    def to_float64(self, elements: NDArray[np.uint8], like: TensorT) -> NDArray[np.float64]:
        """Convert elements of the type of `like`, a floating-point type, to float64.

        Args:
            elements: bytes, in order of the elements along the last axis.
            like: a tensor of the elements' type.
        """

    def from_float64(self, values: NDArray[np.float64], like: TensorT) -> NDArray[np.uint8]:
        """Convert values to elements of the type of `like`."""

    def write(self, tensor: TensorT, elements: NDArray[np.uint8]) -> None:
        """Write a dense tensor's elements, in their order in memory."""
