"""PaddlePaddle's tensors, as `gradred.horovod` needs them of a front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import paddle

from gradred.element_types import ITEMSIZES
from gradred.errors import UsageTypeError, explain, type_of
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
    raise UsageTypeError(asked, f"{type_of(x)} is not a tensor", "Pass paddle.to_tensor(x)")


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
            found = f"{tensor.dtype} is not supported"
            raise ValueError(explain(asked, found, "Convert it first"))
        strides = None if tensor.is_contiguous() else _strides_in_bytes(tensor)
        return Description(tensor.data_ptr(), dtype, tuple(tensor.shape), True, strides)

    def device(self, tensor: paddle.Tensor) -> str:
        """The name of the tensor's device."""
        return str(tensor.place)

    def current_stream(self, tensor: paddle.Tensor) -> NoReturn:
        """Never called: `describe` accepts tensors in host memory only."""
        raise AssertionError(f"{self.device(tensor)} has no stream")

    def empty_like(self, tensor: paddle.Tensor, asked: str) -> paddle.Tensor:
        """Make a tensor for a result, in C order.

        An input with another order of axes is refused later.
        """
        return paddle.empty_like(require_tensor(tensor, asked))

    def converted(self, tensor: paddle.Tensor, dtype: str) -> paddle.Tensor:
        """Make a contiguous copy of another type."""
        return tensor.astype(_TYPES[dtype]).contiguous()

    def of_memory(
        self,
        memory: NDArray[np.uint8],
        dtype: str,
        shape: Sequence[int],
        like: paddle.Tensor | None,
    ) -> paddle.Tensor:
        """Make a tensor of bytes in host memory, the only device."""
        if memory.nbytes == 0:
            return paddle.empty(list(shape), _TYPES[dtype])
        made = paddle.utils.dlpack.from_dlpack(np.ascontiguousarray(memory))
        return made.view(_TYPES[dtype]).reshape(list(shape))


def _strides_in_bytes(tensor: paddle.Tensor) -> tuple[int, ...]:
    itemsize = tensor.element_size()
    return tuple(step * itemsize for step in tensor.strides)


_TYPES = {name: dtype for dtype, name in DTYPES.items()}

FRONT_END: FrontEnd[paddle.Tensor] = PaddleFrontEnd()
COLLECTIVES: Collectives[paddle.Tensor] = Collectives(FRONT_END)
