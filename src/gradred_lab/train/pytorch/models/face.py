"""A face network: a residual network whose classifier has a row for each person."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from gradred_lab.train.framework import Size
from gradred_lab.train.pytorch.models.network import Network, Tensors, scaled

_BLOCKS = (3, 4, 14, 3)
_PEOPLE = 85_742  # of MS1MV2
_EMBEDDING = 512
_SCALE, _MARGIN = 64.0, 0.5


class _Block(nn.Module):
    """Batch normalisation first, two 3x3 convolutions, PReLU; the second has the stride."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.PReLU(outputs),
            nn.Conv2d(outputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: Any = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Any) -> Any:
        return self.body(x) + self.shortcut(x)


class FaceBackbone(nn.Module):
    """A face in 512 numbers: the improved ResNet-50 of ArcFace (Deng et al., 2019)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.image, self.embedding = size.image or 112, scaled(_EMBEDDING, size.scale)
        width = scaled(64, size.scale)
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.PReLU(width)
        ]  # fmt: skip
        inputs, side = width, self.image
        for stage, blocks in enumerate(_BLOCKS):
            for block in range(min(blocks, size.layers or blocks)):
                layers.append(_Block(inputs, width << stage, 2 if block == 0 else 1))
                inputs = width << stage
            side = -(-side // 2)
        self.layers = nn.Sequential(
            *layers,
            nn.BatchNorm2d(inputs),
            nn.Flatten(),
            nn.Linear(inputs * side * side, self.embedding),
            nn.BatchNorm1d(self.embedding),
        )

    def forward(self, images: Any) -> Any:
        """The embedding of each image."""
        return self.layers(images)


class FaceNetwork(Network):
    """The network with ArcFace's loss over all people: the classifier is most of the gradients."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.backbone = FaceBackbone(size)
        self.people = scaled(_PEOPLE, size.scale)
        self.classifier = nn.Parameter(torch.empty(self.people, self.backbone.embedding))
        nn.init.normal_(self.classifier, std=0.01)

    def forward(self, images: Any, people: Any) -> Any:
        """Scores of each person, with the margin at the right one.

        Args:
            images: faces.
            people: who they are.
        """
        faces = nn.functional.normalize(self.backbone(images))
        cosines = nn.functional.linear(faces, nn.functional.normalize(self.classifier)).float()
        right = cosines.gather(1, people[:, None]).clamp(-1 + 1e-6, 1 - 1e-6)
        further = torch.cos(torch.acos(right) + _MARGIN)
        # Beyond the angle at which the margin would pass half a turn, a straight line continues.
        allowed = right > math.cos(math.pi - _MARGIN)
        line = right - _MARGIN * math.sin(_MARGIN)
        return _SCALE * cosines.scatter(1, people[:, None], torch.where(allowed, further, line))

    def sample(self, batch: int, numbers: Any) -> tuple[Tensors, Tensors]:
        """Images at random, of people at random."""
        side = self.backbone.image
        images = torch.randn(batch, 3, side, side, generator=numbers)
        people = torch.randint(self.people, (batch,), generator=numbers)
        return (images, people), (people,)

    def loss(self, outputs: Any, targets: Tensors) -> Any:
        """The cross-entropy."""
        return nn.functional.cross_entropy(outputs, targets[0])
