"""Wide & Deep, a recommender: nearly all parameters are tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradred_lab.train.framework import Size
from gradred_lab.train.pytorch.models.network import Network, Tensors, scaled

# Criteo's fields, and the sizes of the published benchmarks of data-parallel frameworks.
_NUMBERS, _CATEGORIES, _CROSSED = 13, 26, 2
_VALUES = 1_603_616
_WIDTH, _HIDDEN, _LAYERS = 16, 1024, 7


class WideDeep(Network):
    """A linear model of crossed fields, and a deep one of embeddings (Cheng et al., 2016).

    Gradients of the tables are dense, so an exchange moves whole tables.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.values = scaled(_VALUES, size.scale)
        hidden, width = scaled(_HIDDEN, size.scale), scaled(_WIDTH, size.scale, 4)
        self.wide = nn.Embedding(self.values, 1)
        self.table = nn.Embedding(self.values, width)
        for table in (self.wide, self.table):
            nn.init.normal_(table.weight, std=0.01)
        layers: list[nn.Module] = []
        inputs = _CATEGORIES * width + _NUMBERS
        for _ in range(size.layers or _LAYERS):
            layers += [nn.Linear(inputs, hidden), nn.ReLU(inplace=True), nn.Dropout(0.5)]
            inputs = hidden
        self.deep = nn.Sequential(*layers, nn.Linear(inputs, 1))

    def forward(self, numbers: Any, categories: Any, crossed: Any) -> Any:
        """The logarithm of the odds of a click."""
        deep = self.deep(torch.cat([numbers, self.table(categories).flatten(1)], 1))
        return (deep + self.wide(crossed).sum(1)).squeeze(1)

    def sample(self, batch: int, numbers: Any) -> tuple[Tensors, Tensors]:
        """Fields at random, and clicks."""
        dense = torch.rand(batch, _NUMBERS, generator=numbers)
        categories, crossed = (
            torch.randint(self.values, (batch, count), generator=numbers)
            for count in (_CATEGORIES, _CROSSED)
        )
        return (dense, categories, crossed), (torch.rand(batch, generator=numbers).round(),)

    def loss(self, outputs: Any, targets: Tensors) -> Any:
        """The binary cross-entropy."""
        return nn.functional.binary_cross_entropy_with_logits(outputs, targets[0])
