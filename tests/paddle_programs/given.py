"""Helpers of the tests of `gradred.paddle`: a model, and batches for all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")
hvd = pytest.importorskip("gradred.paddle")

hvd.init()

STEPS, ROWS = 4, 6


def model_of(seed: int = 1) -> Any:
    """A model in float64, the same on all ranks for one seed; its inputs are of 5 numbers."""
    model = paddle.nn.Sequential(
        paddle.nn.Linear(5, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 3)
    ).to(dtype="float64")
    made = np.random.default_rng(seed)
    for parameter in model.parameters():
        parameter.set_value(made.standard_normal(parameter.shape) / 4)
    return model


def batches(seed: int = 7) -> tuple[Any, Any]:
    """Inputs and targets, the same on all ranks: for each step, the rows of each rank."""
    made = np.random.default_rng(seed)
    shape = (STEPS, hvd.size(), ROWS)
    return made.standard_normal((*shape, 5)), made.standard_normal((*shape, 3))


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return ((model(paddle.to_tensor(x)) - paddle.to_tensor(y)) ** 2).mean()


def values(model: Any) -> list[Any]:
    return [one.numpy() for one in model.parameters()]


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
