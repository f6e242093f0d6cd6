"""PyTorch's tensors, as `gradred.horovod` needs them of a front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gradred.horovod.collectives import Collectives
from gradred.horovod.front_end import FrontEnd
from gradred.torch_tensors import DTYPES, TorchTensors, require_tensor, tensor_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TorchFrontEnd(TorchTensors):
    """A front end for PyTorch; see `gradred.horovod.front_end.FrontEnd`."""

    def empty_like(self, tensor: torch.Tensor, asked: str) -> torch.Tensor:
        """Make a tensor for a result."""
        try:
            return torch.empty_like(tensor, requires_grad=False)
        except TypeError:
            require_tensor(tensor, asked)
            raise

    def converted(self, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
        """Make a contiguous copy of another type."""
        return tensor.to(_TYPES[dtype]).contiguous()

    def of_memory(
        self,
        memory: NDArray[np.uint8],
        dtype: str,
        shape: Sequence[int],
        like: torch.Tensor | None,
    ) -> torch.Tensor:
        """Make a tensor of bytes in host memory."""
        return tensor_of(memory, _TYPES[dtype], shape, like)


_TYPES = {name: dtype for dtype, name in DTYPES.items()}

FRONT_END: FrontEnd[torch.Tensor] = TorchFrontEnd()
COLLECTIVES: Collectives[torch.Tensor] = Collectives(FRONT_END)
