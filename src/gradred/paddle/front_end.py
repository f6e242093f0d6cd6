"""PaddlePaddle's tensors, as `gradred.horovod` needs them of a front end."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import paddle

from gradred.buffers.arrays import layout_of
from gradred.element_types import ITEMSIZES
from gradred.errors import UsageTypeError, explain
from gradred.horovod.collectives import Collectives
from gradred.horovod.front_end import FrontEnd
from gradred.tensors import Description

if TYPE_CHECKING:
    from numpy.typing import NDArray

DTYPES = {
    dtype: name
    for name in ITEMSIZES
    if isinstance(dtype := getattr(paddle, name, None), paddle.dtype)
}
"""gradred's names of the element types that this PaddlePaddle has."""


def require_tensor(x: Any, asked: str) -> paddle.Tensor:
    """Return `x` if it is a tensor of PaddlePaddle, else raise UsageTypeError."""
    if isinstance(x, paddle.Tensor):
        return x
    found = f"a {type(x).__name__} is not a tensor"
    raise UsageTypeError(explain(asked, found, "Pass paddle.to_tensor(x)"))


class PaddleFrontEnd:
    """A front end for PaddlePaddle; see `gradred.horovod.front_end.FrontEnd`.

    Operations work on the tensors' own memory. Tensors of a GPU are refused.
    """

    def describe(self, tensor: paddle.Tensor, asked: str) -> Description:
        """Describe a tensor.

        Raises:
            ValueError: the tensor's type is not supported, it is sparse, or it is on a GPU.
            gradred.UsageError: it is not a tensor.
        """
        require_tensor(tensor, asked)
        if not tensor.is_dense():
            found = "the tensor is sparse, as is the gradient of Embedding(sparse=True)"
            raise ValueError(explain(asked, found, "Pass a dense tensor"))
        if not tensor.place.is_cpu_place():
            found = f"the tensor is on {tensor.place}"
            raise ValueError(explain(asked, found, "Pass tensor.cpu()"))
        dtype = DTYPES.get(tensor.dtype)
        if dtype is None:
            found = f"{self.type_name(tensor)} is not supported"
            raise ValueError(explain(asked, found, "Convert it first"))
        in_order = bool(tensor.is_contiguous())
        return Description(tensor.data_ptr(), dtype, tuple(tensor.shape), True, in_order)

    def memory(self, tensor: paddle.Tensor) -> tuple[int, int]:
        """The address of the first element, and the number of bytes of all elements."""
        return tensor.data_ptr(), int(tensor.size) * tensor.element_size()

    def order_of_axes(self, tensor: paddle.Tensor) -> tuple[int, ...] | None:
        """The axes from the slowest to the fastest in memory. None: the tensor has gaps."""
        layout = layout_of(tuple(tensor.shape), tuple(tensor.strides), 1)
        return None if layout is None else layout.order

    def device(self, tensor: paddle.Tensor) -> str:
        """The name of the tensor's device."""
        return str(tensor.place)

    def current_stream(self, tensor: paddle.Tensor) -> NoReturn:
        """Never called: `describe` accepts tensors in host memory only."""
        raise AssertionError(f"{self.device(tensor)} has no stream")

    def type_name(self, tensor: paddle.Tensor) -> str:
        """PaddlePaddle's name of the tensor's type."""
        return str(tensor.dtype)

    def why_not_dense(self, tensor: paddle.Tensor, in_place: bool) -> tuple[str, str]:
        """The strides of a tensor with gaps, and the remedy."""
        shape, strides = tuple(tensor.shape), tuple(tensor.strides)
        found = f"the tensor is not dense: shape {shape}, strides {strides}"
        remedy = "Pass dense = tensor.contiguous()"
        if in_place:
            remedy += ", and then copy it back: paddle.assign(dense, tensor)"
        return found, remedy

    def empty_like(self, tensor: paddle.Tensor, asked: str) -> paddle.Tensor:
        """Make a tensor for a result, in C order.

        An input with another order of axes is refused later.
        """
        return paddle.empty_like(require_tensor(tensor, asked))

    def with_rows(self, tensor: paddle.Tensor, asked: str) -> paddle.Tensor:
        """The tensor if it is contiguous, else a contiguous copy.

        Raises:
            ValueError: the tensor has no axis.
            gradred.UsageError: it is not a tensor.
        """
        if require_tensor(tensor, asked).ndim == 0:
            raise ValueError(explain(asked, "the tensor has no axis", "Pass tensor.reshape([1])"))
        return tensor.contiguous() if tensor.is_dense() else tensor

    def of_memory(self, output: NDArray[np.uint8], like: paddle.Tensor, rows: int) -> paddle.Tensor:
        """Make a tensor of memory that the engine allocated for a result."""
        shape = [rows, *like.shape[1:]]
        if output.nbytes == 0:
            return paddle.empty(shape, like.dtype)
        return _of(output, like).reshape(shape)

    def numbers_of(self, splits: Any) -> list[int]:
        """Read the argument `splits` of an alltoall."""
        if not isinstance(splits, paddle.Tensor):
            return [int(rows) for rows in splits]
        if splits.dtype != paddle.int32 or splits.ndim != 1:
            found = f"splits are {splits.dtype} of {splits.ndim} axes"
            raise ValueError(explain("alltoall", found, "Pass int32 of one axis"))
        return [int(rows) for rows in splits.numpy()]

    def like_splits(self, numbers: Sequence[int], splits: Any) -> paddle.Tensor:
        """Make an int32 tensor."""
        return paddle.to_tensor(np.array(numbers, np.int32))

    def to_float64(self, elements: NDArray[np.uint8], like: paddle.Tensor) -> NDArray[np.float64]:
        """Convert elements of the type of `like` to float64."""
        exact: NDArray[np.float64] = _of(elements, like).astype("float64").numpy()
        return exact

    def from_float64(self, values: NDArray[np.float64], like: paddle.Tensor) -> NDArray[np.uint8]:
        """Convert values to elements of the type of `like`."""
        made: NDArray[Any] = paddle.to_tensor(values).astype(like.dtype).numpy()
        return made.view(np.uint8)  # of bfloat16, numpy() returns the bits as uint16

    def write(self, tensor: paddle.Tensor, elements: NDArray[np.uint8]) -> None:
        """Write a dense tensor's elements, in their order in memory."""
        address, nbytes = self.memory(tensor)
        ctypes.memmove(address, np.ascontiguousarray(elements).ctypes.data, nbytes)


def _of(memory: NDArray[np.uint8], like: paddle.Tensor) -> paddle.Tensor:
    """A tensor of one axis over this memory, with the type of `like`."""
    return paddle.utils.dlpack.from_dlpack(np.ascontiguousarray(memory)).view(like.dtype)


FRONT_END: FrontEnd[paddle.Tensor] = PaddleFrontEnd()
COLLECTIVES: Collectives[paddle.Tensor] = Collectives(FRONT_END)
