"""What all networks have: examples of their input, and a loss."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import nn

Tensors: TypeAlias = tuple[Any, ...]

CLASSES = 1000  # of ImageNet


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


class ImageClassifier(Network):
    """A network that puts images into the classes of ImageNet."""

    image = 224
    """Pixels of each side."""

    def sample(self, batch: int, numbers: Any) -> tuple[Tensors, Tensors]:
        """Images of normally distributed values, and classes, all at random."""
        images = torch.randn(batch, 3, self.image, self.image, generator=numbers)
        return (images,), (torch.randint(CLASSES, (batch,), generator=numbers),)

    def loss(self, outputs: Any, targets: Tensors) -> Any:
        """The cross-entropy."""
        return nn.functional.cross_entropy(outputs, targets[0])


def scaled(width: int, scale: float, multiple: int = 8) -> int:
    """A width times the scale, rounded to a multiple, which is also the least."""
    if scale == 1:
        return width
    return max(multiple, round(width * scale / multiple) * multiple)
