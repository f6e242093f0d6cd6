"""PyTorch's tensors, as `gradred.horovod` needs them of a front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gradred.errors import explain
from gradred.horovod.collectives import Collectives
from gradred.horovod.front_end import FrontEnd
from gradred.torch_tensors import TorchTensors, require_tensor, tensor_of

if TYPE_CHECKING:
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

    def with_rows(self, tensor: torch.Tensor, asked: str) -> torch.Tensor:
        """The tensor if it is contiguous, else a contiguous copy.

        Raises:
            ValueError: the tensor has no axis.
            gradred.UsageError: it is not a tensor.
        """
        if require_tensor(tensor, asked).dim() == 0:
            raise ValueError(explain(asked, "the tensor has no axis", "Pass tensor.reshape(1)"))
        return tensor.contiguous() if tensor.layout is torch.strided else tensor

    def of_memory(self, output: NDArray[np.uint8], like: torch.Tensor, rows: int) -> torch.Tensor:
        """Make a tensor of memory that the engine allocated for a result."""
        return tensor_of(output, like, rows)

    def numbers_of(self, splits: Any) -> list[int]:
        """Read the argument `splits` of an alltoall."""
        if not isinstance(splits, torch.Tensor):
            return [int(rows) for rows in splits]
        if splits.dtype is not torch.int32 or splits.dim() != 1:
            found = f"splits are {splits.dtype} of {splits.dim()} axes"
            raise ValueError(explain("alltoall", found, "Pass int32 of one axis"))
        return [int(rows) for rows in splits.tolist()]

    def like_splits(self, numbers: Sequence[int], splits: Any) -> torch.Tensor:
        """Make an int32 tensor on the device of `splits`."""
        device = splits.device if isinstance(splits, torch.Tensor) else "cpu"
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    def to_float64(self, elements: NDArray[np.uint8], like: torch.Tensor) -> NDArray[np.float64]:
        """Convert elements of the type of `like` to float64."""
        exact: NDArray[np.float64] = torch.from_numpy(elements).view(like.dtype).double().numpy()
        return exact

    def from_float64(self, values: NDArray[np.float64], like: torch.Tensor) -> NDArray[np.uint8]:
        """Convert values to elements of the type of `like`."""
        made: NDArray[np.uint8] = torch.from_numpy(values).to(like.dtype).view(torch.uint8).numpy()
        return made

    def write(self, tensor: torch.Tensor, elements: NDArray[np.uint8]) -> None:
        """Write a dense tensor's elements, in their order in memory."""
        flat = torch.as_strided(tensor.detach(), (tensor.numel(),), (1,), tensor.storage_offset())
        flat.copy_(torch.from_numpy(elements).view(tensor.dtype))


FRONT_END: FrontEnd[torch.Tensor] = TorchFrontEnd()
COLLECTIVES: Collectives[torch.Tensor] = Collectives(FRONT_END)
