"""What all networks have: examples of their input, and a loss."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import nn

Tensors: TypeAlias = tuple[Any, ...]


class Network(nn.Module):
    """A network with synthetic data of the kind that it is trained on."""

    def sample(self, batch: int, numbers: Any) -> tuple[Tensors, Tensors]:
        """Make inputs of `forward`, and targets of `loss`, in host memory.

        Args:
            batch: the number of samples.
            numbers: `torch.Generator`.
        """
        raise NotImplementedError

    def loss(self, outputs: Any, targets: Tensors) -> Any:
        """The loss of what `forward` returned: the mean over the batch."""
        raise NotImplementedError


def scaled(width: int, scale: float, multiple: int = 8) -> int:
    """A width times the scale, rounded to a multiple, which is also the least."""
    if scale == 1:
        return width
    return max(multiple, round(width * scale / multiple) * multiple)
