"""ResNet-50 v1.5."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradred_lab.train.framework import Size
from gradred_lab.train.pytorch.models.network import CLASSES, ImageClassifier, scaled

_BLOCKS = (3, 4, 6, 3)
_EXPANSION = 4


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """A convolution that keeps the size but for its stride, and batch normalisation."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return [convolution, nn.BatchNorm2d(outputs)]


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 beside a shortcut. In v1.5 the 3x3 convolution has the stride."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = _EXPANSION * width
        self.body = nn.Sequential(
            *_convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, outputs, 1),
        )
        self.shortcut: Any = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet50(ImageClassifier):
    """ResNet-50 (He et al., 2016) with the stride of v1.5."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.image = size.image or 224
        width = scaled(64, size.scale)
        layers: list[nn.Module] = [
            *_convolution(3, width, 7, 2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        inputs = width
        for stage, blocks in enumerate(_BLOCKS):
            for block in range(min(blocks, size.layers or blocks)):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(_Bottleneck(inputs, width << stage, stride))
                inputs = _EXPANSION * (width << stage)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, CLASSES)

    def forward(self, images: Any) -> Any:
        """Scores of each class."""
        return self.classifier(self.features(images).mean((2, 3)))
