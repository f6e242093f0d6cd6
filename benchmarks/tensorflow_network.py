"""What benchmarks/tensorflow_step.py and its parameter servers both compute."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from models import resnet50

WIDTHS = (784, 1024, 1024, 10)  # of the multilayer perceptron
SAMPLES = 64  # of a rank in a step


SETS = {
    "1 of 4 KB": [1024],
    "100 of 4 KB": [1024] * 100,
    "1 of 4 MB": [1 << 20],
    "ResNet-50's gradients": resnet50(),
}
MLP = "MLP"


def start_values() -> list[Any]:
    """The first weights of the perceptron, the same in all processes."""
    shapes = [shape for n, m in pairwise(WIDTHS) for shape in ((n, m), (m,))]
    made = np.random.default_rng(0)
    return [made.standard_normal(shape).astype("f4") * 0.02 for shape in shapes]


def data_of(rank: int, tf: Any) -> tuple[Any, Any]:
    """The inputs and labels of a rank."""
    own = np.random.default_rng(rank + 1)
    x = tf.constant(own.standard_normal((SAMPLES, WIDTHS[0])), tf.float32)
    return x, tf.constant(own.integers(0, WIDTHS[-1], SAMPLES))


def loss_of(weights: list[Any], x: Any, y: Any, tf: Any) -> Any:
    """The perceptron's loss."""
    value = x
    for number in range(0, len(weights), 2):
        value = tf.matmul(value, weights[number]) + weights[number + 1]
        value = tf.nn.relu(value) if number + 2 < len(weights) else value
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, value))
