"""ResNet-50, VGG-16, AlexNet and GoogLeNet, all of them torchvision's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from gradred_lab.train.framework import Size
from gradred_lab.train.pytorch.models.network import Network, Tensors, scaled

CLASSES = 1000  # of ImageNet
_AUXILIARY = 0.3  # weight of each auxiliary loss in the paper


def load() -> Any:
    """Return `torchvision.models`, also where torchvision's operators do not load.

    Beside a PyTorch without CUDA, pip may install a torchvision for CUDA. Its operators then do not
    load, but it cannot be imported unless these two are declared. No network here uses any.
    """
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    for name in ("nms", "qnms"):
        arguments = "Tensor dets, Tensor scores, float iou_threshold"
        torch.library.define(f"torchvision::{name}", f"({arguments}) -> Tensor")
    return importlib.import_module("torchvision.models")


models = load()


class ImageNetwork(Network):
    """A network that puts images into the classes of ImageNet.

    Args:
        make: returns torchvision's network; called with PyTorch's device "meta".
        size: how far it is reduced.
        width: the number of channels, or of hidden units, in place of each number that it has.
        first: draws the first values of a convolution's weights, where PyTorch's own do not stay.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        size: Size,
        width: Callable[[int], int],
        first: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.image = size.image or 224
        with torch.device("meta"):  # so that first values are drawn once, below
            self.network = make()
            if size.scale != 1:
                _narrow(self.network, width, self.image)
        self.network.to_empty(device=torch.empty(0).device)
        for layer in self.network.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
            if first and isinstance(layer, nn.Conv2d):
                first(layer.weight)

    def forward(self, images: Any) -> Any:
        """Scores of each class."""
        return self.network(images)

    def sample(self, batch: int, numbers: Any) -> tuple[Tensors, Tensors]:
        """Images of normally distributed values, and classes, all at random."""
        images = torch.randn(batch, 3, self.image, self.image, generator=numbers)
        return (images,), (torch.randint(CLASSES, (batch,), generator=numbers),)

    def loss(self, outputs: Any, targets: Tensors) -> Any:
        """The cross-entropy."""
        return nn.functional.cross_entropy(outputs, targets[0])


def _narrow(network: Any, width: Callable[[int], int], image: int) -> None:
    """Replace layers by others of those widths, which learn from an image what enters them."""
    for path, layer in list(network.named_modules()):
        if isinstance(layer, nn.Conv2d):
            made: Any = nn.LazyConv2d(
                width(layer.out_channels), layer.kernel_size, layer.stride, layer.padding,
                bias=layer.bias is not None,
            )  # fmt: skip
        elif isinstance(layer, nn.BatchNorm2d):
            made = nn.LazyBatchNorm2d(layer.eps)
        elif isinstance(layer, nn.Linear):
            units = layer.out_features
            made = nn.LazyLinear(units if units == CLASSES else width(units))
        else:
            continue
        parent, _, name = path.rpartition(".")
        setattr(network.get_submodule(parent), name, made)
    network.eval().training = True  # one image has no variance, but auxiliary heads are to see it
    network(torch.zeros(1, 3, image, image))
    network.train()


class ResNet50(ImageNetwork):
    """ResNet-50 (He et al., 2016) with the stride of v1.5."""

    def __init__(self, size: Size) -> None:
        blocks = [min(one, size.layers or one) for one in (3, 4, 6, 3)]
        unit = scaled(64, size.scale)
        super().__init__(
            lambda: models.ResNet(models.resnet.Bottleneck, blocks),
            size,
            lambda channels: channels // 64 * unit,
            partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu"),
        )


class Vgg16(ImageNetwork):
    """VGG-16 without batch normalisation (Simonyan and Zisserman, 2015, configuration D)."""

    def __init__(self, size: Size) -> None:
        super().__init__(models.vgg16, size, partial(scaled, scale=size.scale))


class AlexNet(ImageNetwork):
    """AlexNet on one device (Krizhevsky, "One weird trick", 2014)."""

    def __init__(self, size: Size) -> None:
        super().__init__(models.AlexNet, size, partial(scaled, scale=size.scale))


class GoogLeNet(ImageNetwork):
    """GoogLeNet (Szegedy et al., 2015) with batch normalisation and both auxiliary heads.

    The third branch of a module has a 3x3 kernel, not the paper's 5x5: so has the implementation
    whose number of parameters is usually quoted.
    """

    def __init__(self, size: Size) -> None:
        super().__init__(
            partial(models.GoogLeNet, init_weights=False),
            size,
            partial(scaled, scale=size.scale, multiple=4),
            partial(nn.init.normal_, std=0.01),
        )

    def loss(self, outputs: Any, targets: Tensors) -> Any:
        """The cross-entropy, and 0.3 of that of each head."""
        first, *others = (nn.functional.cross_entropy(one, targets[0]) for one in outputs)
        return first + _AUXILIARY * sum(others)
