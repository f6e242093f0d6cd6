"""What `gradred schemes` trains: a small network on real data, in NumPy or PyTorch."""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradred.compression import Floats
from gradred.errors import UsageError
from gradred_lab import packages

Ints: TypeAlias = NDArray[np.int64]


class Data(NamedTuple):
    """Images or other rows, their classes, and how many of the first rows are for training."""

    x: Floats
    y: Ints
    training: int

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.y.max()) + 1


def load(name: str) -> Data:
    """Load `digits` of scikit-learn, or the arrays x and y of an .npz file. A fifth is for tests.

    Raises:
        UsageError: there is no scikit-learn, or the file does not hold such arrays.
    """
    if name == "digits":
        found = "the images come with scikit-learn, which is not installed"
        packages.require("sklearn", "--data digits", found, ", or name an .npz file")
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        x, y = (images / 16).astype(np.float32), labels.astype(np.int64)
    else:
        x, y = _from_file(name)
    order = np.random.default_rng(1).permutation(len(x))
    return Data(x[order], y[order], len(x) - len(x) // 5)


def _from_file(name: str) -> tuple[Floats, Ints]:
    remedy = "Save it with numpy.savez(file, x=rows of numbers, y=their classes from 0)"
    try:
        with np.load(name, allow_pickle=False) as file:
            x, y = file["x"], file["y"]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UsageError(f"--data {name}", f"cannot be read ({error})", remedy) from None
    if (
        x.ndim < 2
        or y.shape != x.shape[:1]
        or y.dtype.kind not in "iu"
        or len(y) < 5
        or y.min() < 0
    ):
        found = f"x has shape {x.shape}, y has shape {y.shape} and type {y.dtype}"
        raise UsageError(f"--data {name}", found, remedy)
    return x.reshape(len(x), -1).astype(np.float32), y.astype(np.int64)


class Batches:
    """Rows of each step: whole passes over all rows, each in a new order.

    Args:
        rows: their number.
        size: rows of a step, of all workers together.
        seed: of the orders.
    """

    def __init__(self, rows: int, size: int, seed: int) -> None:
        self._rows, self._size = rows, size
        self._order = functools.lru_cache(2)(
            lambda turn: np.random.default_rng((seed, turn)).permutation(rows)
        )

    def of(self, step: int) -> Ints:
        """The rows of a step, the same on every rank."""
        places = np.arange(step * self._size, (step + 1) * self._size)
        turns = places // self._rows
        return np.concatenate(
            [
                self._order(int(turn))[places[turns == turn] % self._rows]
                for turn in np.unique(turns)
            ]
        )


def initial(layers: Sequence[int], seed: int) -> list[Floats]:
    """The matrix (inputs, outputs) and the bias of each layer before the first step."""
    drawn = np.random.default_rng(seed)
    made: list[Floats] = []
    for n, m in pairwise(layers):
        made.append((drawn.standard_normal((n, m)) * np.sqrt(2 / n)).astype(np.float32))
        made.append(np.zeros(m, np.float32))
    return made


def _nothing(tensor: int) -> None:
    """Default of `ready` and `need`."""


def _forward(
    weights: Sequence[Floats], x: Floats, need: Callable[[int], None] = _nothing
) -> list[Floats]:
    """The input of each layer, then the scores."""
    values = [x]
    for first in range(0, len(weights), 2):
        need(first)
        need(first + 1)
        inside = values[-1] @ weights[first] + weights[first + 1]
        values.append(inside if first + 2 == len(weights) else np.maximum(inside, 0))
    return values


def _softmax(scores: Floats) -> Floats:
    raised: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    raised /= raised.sum(axis=1, keepdims=True)
    return raised


def evaluate(weights: Sequence[Floats], x: Floats, y: Ints) -> tuple[float, float]:
    """The mean cross-entropy, and the share of rows that are right."""
    scores = _forward(weights, x)[-1]
    chances = _softmax(scores)[np.arange(len(y)), y].astype(np.float64)
    loss = -np.log(np.maximum(chances, 1e-30)).mean()
    return float(loss), float((scores.argmax(axis=1) == y).mean())


class NumpyNetwork:
    """Layers with ReLU between them.

    Args:
        weights: the matrix and bias of each layer.
        gradients: arrays of the same shapes, for the gradients.
    """

    def __init__(self, weights: list[Floats], gradients: list[Floats]) -> None:
        self.parameters, self.gradients = weights, gradients

    def backward(
        self,
        x: Floats,
        y: Ints,
        ready: Callable[[int], None] = _nothing,
        need: Callable[[int], None] = _nothing,
    ) -> None:
        """Compute the gradients of the mean cross-entropy.

        Args:
            x: rows.
            y: their classes.
            ready: called with the number of each tensor when its gradient is complete.
            need: called with the number of each tensor before it is used.
        """
        *inputs, scores = _forward(self.parameters, x, need)
        delta = _softmax(scores)
        delta[np.arange(len(y)), y] -= 1
        delta /= np.float32(len(y))
        for layer in reversed(range(len(inputs))):
            value = inputs[layer]
            np.sum(delta, axis=0, out=self.gradients[2 * layer + 1])
            ready(2 * layer + 1)
            np.matmul(value.T, delta, out=self.gradients[2 * layer])
            ready(2 * layer)
            if layer:
                delta = (delta @ self.parameters[2 * layer].T) * (value > 0)


class TorchNetwork:
    """The network of this workload in PyTorch; PyTorch's hooks say when gradients are ready."""

    def __init__(self, weights: Sequence[Floats]) -> None:
        import torch

        torch.set_num_threads(1)
        self.parameters = [torch.nn.Parameter(torch.from_numpy(one.copy())) for one in weights]

    def backward(self, x: Floats, y: Ints, *_: Any) -> None:
        """Compute the gradients of the mean cross-entropy."""
        import torch

        value = torch.from_numpy(x)
        for first in range(0, len(self.parameters), 2):
            value = value @ self.parameters[first] + self.parameters[first + 1]
            if first + 2 < len(self.parameters):
                value = value.relu()
        torch.nn.functional.cross_entropy(value, torch.from_numpy(y)).backward()
