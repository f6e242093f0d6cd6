"""The sizes of a model's parameters."""

from __future__ import annotations


def resnet50() -> list[int]:
    """Return the numbers of elements of ResNet-50's parameters, in the model's order."""
    counts = [64 * 3 * 7 * 7, 64, 64]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            outputs = 4 * width
            convolutions = (inputs * width, width), (9 * width * width, width)
            for weights, features in (*convolutions, (width * outputs, outputs)):
                counts += [weights, features, features]
            if block == 0:
                counts += [inputs * outputs, outputs, outputs]
            inputs = outputs
    return [*counts, 2048 * 1000, 1000]
