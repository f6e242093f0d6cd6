"""`DistributedOptimizer.step(closure)` reduces the gradients that the closure computes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from pytorch.given import batches, hvd, model_of, torch

pytestmark = pytest.mark.usefixtures("initialised")

MAKES: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=4),
}


def loss_of(model: Any, inputs: Any) -> Any:
    return sum(model(x).square().mean() for x in inputs) / len(inputs)


def train(optimizer: Any, model: Any, data: Any, mean: Callable[[Any], Any]) -> None:
    """Train as in PyTorch's documentation; `mean` averages a loss over all ranks."""
    for inputs in data:

        def closure(inputs: Any = inputs) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, inputs)
            loss.backward()
            return mean(loss.detach())

        optimizer.step(closure)


def require_alike(model: Any, alone: Any) -> None:
    for found, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"gradient_as_bucket_view": True}])
@pytest.mark.parametrize("make", MAKES)
def test_steps_with_closures_are_those_of_one_process(make: str, options: Any) -> None:
    data = batches(3)[:, 0]  # first axes: steps and ranks
    model, alone = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(MAKES[make](model.parameters()), **options)
    mine = data[:, hvd.rank()].unsqueeze(1)
    decides = make == "LBFGS"  # it decides by the loss, which then must be the same on all ranks
    mean = (lambda loss: hvd.allreduce(loss, name="loss")) if decides else (lambda loss: loss)
    train(optimizer, model, mine, mean)
    train(MAKES[make](alone.parameters()), alone, data, lambda loss: loss)
    require_alike(model, alone)


def test_a_closure_may_find_gradients_and_compute_none() -> None:
    data = batches(3)[:, 0]
    model, alone = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(MAKES["SGD"](model.parameters()))
    optimizer_alone = MAKES["SGD"](alone.parameters())
    for inputs in data:
        optimizer.zero_grad()
        loss = loss_of(model, inputs[hvd.rank()].unsqueeze(0))
        loss.backward()
        assert optimizer.step(lambda loss=loss: loss) is loss
        optimizer_alone.zero_grad()
        loss_of(alone, inputs).backward()
        optimizer_alone.step()
    require_alike(model, alone)


def test_gradients_that_were_reduced_in_a_closure_are_reduced_once() -> None:
    model, alone = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(MAKES["SGD"](model.parameters()))
    inputs = batches(1)[0, 0]

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, inputs[hvd.rank()].unsqueeze(0))
        loss.backward()
        optimizer.synchronize()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.skip_synchronize():
            optimizer.step(closure)
    optimizer_alone = MAKES["SGD"](alone.parameters())
    loss_of(alone, inputs).backward()
    optimizer_alone.step()
    require_alike(model, alone)
