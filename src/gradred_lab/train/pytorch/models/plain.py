"""VGG-16 and AlexNet: convolutions in one row, then three large linear layers."""

from __future__ import annotations

from typing import Any

from torch import nn

from gradred_lab.train.framework import Size
from gradred_lab.train.pytorch.models.network import CLASSES, ImageClassifier, scaled

_VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Configuration D: for each pooling, the channels and the number of convolutions before it."""


def _classifier(inputs: int, width: int, dropout_first: bool) -> nn.Sequential:
    dropout = nn.Dropout(0.5)
    hidden = [
        [nn.Linear(inputs, width), nn.ReLU(inplace=True)],
        [nn.Linear(width, width), nn.ReLU(inplace=True)],
    ]
    ordered = [[dropout, *part] if dropout_first else [*part, dropout] for part in hidden]
    return nn.Sequential(*(one for part in ordered for one in part), nn.Linear(width, CLASSES))


class Vgg16(ImageClassifier):
    """VGG-16 without batch normalisation (Simonyan and Zisserman, 2015, configuration D)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.image = size.image or 224
        layers: list[nn.Module] = []
        inputs = 3
        for channels, convolutions in _VGG16:
            width = scaled(channels, size.scale)
            for _ in range(convolutions):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7))
        self.classifier = _classifier(49 * inputs, scaled(4096, size.scale), dropout_first=False)

    def forward(self, images: Any) -> Any:
        """Scores of each class."""
        return self.classifier(self.features(images).flatten(1))


class AlexNet(ImageClassifier):
    """AlexNet on one device (Krizhevsky, "One weird trick", 2014)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.image = size.image or 224
        first, second, third, fourth = (scaled(one, size.scale) for one in (64, 192, 384, 256))
        self.features = nn.Sequential(
            nn.Conv2d(3, first, 11, 4, 2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(first, second, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(second, third, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(third, fourth, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(fourth, fourth, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.AdaptiveAvgPool2d(6),
        )
        self.classifier = _classifier(36 * fourth, scaled(4096, size.scale), dropout_first=True)

    def forward(self, images: Any) -> Any:
        """Scores of each class."""
        return self.classifier(self.features(images).flatten(1))
