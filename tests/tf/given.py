"""Helpers of the tests of `gradred.tensorflow` and `gradred.keras`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
hvd = pytest.importorskip("gradred.tensorflow")

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]


def total() -> int:
    """The sum of all ranks' `hvd.rank() + 1`."""
    return hvd.size() * (hvd.size() + 1) // 2


def model_of(seed: int = 1, rate: float = 0.1) -> Any:
    """A model in float64, the same on all ranks, and its inputs are of 6 numbers."""
    layers = [
        keras.layers.Input((6,), dtype="float64"),
        keras.layers.Dense(8, "tanh", dtype="float64"),
        keras.layers.Dense(3, dtype="float64"),
    ]
    model = keras.Sequential(layers)
    made = np.random.default_rng(seed)
    model.set_weights([made.standard_normal(one.shape) * rate for one in model.get_weights()])
    return model


def batches(steps: int) -> tuple[Any, Any]:
    """Inputs and targets, the same on all ranks: for each step, the part of each rank."""
    made = np.random.default_rng(7)
    shape = (steps, hvd.size(), 4)
    return made.standard_normal((*shape, 6)), made.standard_normal((*shape, 3))


def value(variable: Any) -> Any:
    """The value of a variable of TensorFlow or Keras, as an array."""
    return tf.convert_to_tensor(variable).numpy()
