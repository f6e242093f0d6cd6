"""GoogLeNet with batch normalisation and both auxiliary heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gradred_lab.train.framework import Size
from gradred_lab.train.pytorch.models.network import CLASSES, ImageClassifier, Tensors, scaled

_AUXILIARY = 0.3  # weight of each auxiliary loss in the paper

# The channels of each inception module: those of the 1x1 branch, of the 1x1 and 3x3 layers of the
# second branch, of the 1x1 and 3x3 layers of the third one, and of the branch that pools.
_MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
_POOLED_BEFORE = ("4a", "5a")
_HEAD_AFTER = ("4a", "4d")

_Width = Callable[[int], int]


def _unit(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution, batch normalisation and ReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    nn.init.normal_(convolution.weight, std=0.01)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs, eps=1e-3), nn.ReLU(inplace=True))


class _Inception(nn.Module):
    """Four branches side by side.

    The third one has a 3x3 kernel, not the paper's 5x5: so has the implementation whose number of
    parameters is usually quoted.
    """

    def __init__(self, inputs: int, channels: tuple[int, ...], width: _Width) -> None:
        super().__init__()
        first, before, second, before_third, third, pooled = map(width, channels)
        self.branches = nn.ModuleList(
            [
                _unit(inputs, first, 1),
                nn.Sequential(_unit(inputs, before, 1), _unit(before, second, 3)),
                nn.Sequential(_unit(inputs, before_third, 1), _unit(before_third, third, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), _unit(inputs, pooled, 1)),
            ]
        )
        self.outputs = first + second + third + pooled

    def forward(self, x: Any) -> Any:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _head(inputs: int, width: _Width) -> nn.Sequential:
    """An auxiliary classifier, which only training has."""
    channels, hidden = width(128), width(1024)
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(4),
        _unit(inputs, channels, 1),
        nn.Flatten(),
        nn.Linear(16 * channels, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(0.7),
        nn.Linear(hidden, CLASSES),
    )


class GoogLeNet(ImageClassifier):
    """GoogLeNet (Szegedy et al., 2015) with batch normalisation (Ioffe and Szegedy, 2015)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.image = size.image or 224

        def width(channels: int) -> int:
            return scaled(channels, size.scale, multiple=4)

        inputs = width(192)
        self.stem = nn.Sequential(
            _unit(3, width(64), 7, 2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            _unit(width(64), width(64), 1),
            _unit(width(64), inputs, 3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.stages, self.heads = nn.ModuleDict(), nn.ModuleDict()
        for name, channels in _MODULES.items():
            made = _Inception(inputs, channels, width)
            inputs = made.outputs
            self.stages[name] = made
            if name in _HEAD_AFTER:
                self.heads[name] = _head(inputs, width)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(inputs, CLASSES))

    def forward(self, images: Any) -> Any:
        """Scores of each class: of the network, and of both heads."""
        x, scores = self.stem(images), []
        for name, stage in self.stages.items():
            if name in _POOLED_BEFORE:
                x = nn.functional.max_pool2d(x, 3 if name == "4a" else 2, 2, ceil_mode=True)
            x = stage(x)
            if name in self.heads:
                scores.append(self.heads[name](x))
        return [self.classifier(x.mean((2, 3))), *scores]

    def loss(self, outputs: Any, targets: Tensors) -> Any:
        """The cross-entropy, and 0.3 of that of each head."""
        first, *others = (nn.functional.cross_entropy(one, targets[0]) for one in outputs)
        return first + _AUXILIARY * sum(others)
