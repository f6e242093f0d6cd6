"""Schemes with PyTorch: `Training` follows one process."""

from __future__ import annotations

from typing import Any

import pytest
from mpi4py import MPI

torch = pytest.importorskip("torch")

from gradred.errors import UsageError  # noqa: E402
from gradred.schemes import SCHEMES, Sgd, Training  # noqa: E402

WORLD = MPI.COMM_WORLD
RATE = 0.1


def model_of() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))


def batches(steps: int, workers: int) -> Any:
    """Rows and classes, the same on all ranks: for each step the part of each worker."""
    made = torch.Generator().manual_seed(7)
    x = torch.randn(steps, workers, 8, 6, generator=made)
    return x, (x[..., :3] + 0.5 * x[..., 3:]).argmax(-1)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(x.reshape(-1, 6)), y.reshape(-1))


def alone(steps: int, workers: int) -> Any:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x, y in zip(*batches(steps, workers), strict=True):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return model


def require_equal(found: Any, expected: Any) -> None:
    for mine, one in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), one.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("scheme", [name for name, row in SCHEMES.items() if row.synchronous])
def test_training_follows_one_process_and_gradients_start_in_backward(
    scheme: str, contiguous: bool
) -> None:
    if WORLD.size <= SCHEMES[scheme].servers:
        pytest.skip("no rank is left for a worker")
    model, steps = model_of(), 8
    with Training(
        model.parameters(), scheme, rule=Sgd(RATE), comm=WORLD, contiguous=contiguous
    ) as training:
        x, y = batches(steps, len(training.workers))
        for step in training.steps(steps):
            loss_of(model, x[step, training.rank], y[step, training.rank]).backward()
            with pytest.raises(UsageError, match="exchanged already"):
                training.ready(0)
            training.update()
    if not training.is_server:
        require_equal(model, alone(steps, len(training.workers)))


@pytest.mark.parametrize("scheme", ["bsp", "mesh"])
def test_a_program_may_drop_gradients_after_each_step(scheme: str) -> None:
    """As `optimizer.zero_grad()` does; the next ones then lie elsewhere."""
    model, steps = model_of(), 5
    with Training(model.parameters(), scheme, rule=Sgd(RATE), comm=WORLD) as training:
        x, y = batches(steps, WORLD.size)
        for step in training.steps(steps):
            model.zero_grad()
            loss_of(model, x[step, WORLD.rank], y[step, WORLD.rank]).backward()
            training.update()
    require_equal(model, alone(steps, WORLD.size))


@pytest.mark.parametrize("scheme", ["bsp", "ps"])
def test_frozen_parameters_get_the_values_of_rank_zero_and_keep_them(scheme: str) -> None:
    if WORLD.size <= SCHEMES[scheme].servers:
        pytest.skip("no rank is left for a worker")
    torch.manual_seed(WORLD.rank)
    model = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))
    model[0].requires_grad_(False)
    frozen = WORLD.bcast(model[0].weight.numpy().copy())
    with Training(model.parameters(), scheme, rule=Sgd(RATE), comm=WORLD) as training:
        assert len(training.weights) == 2
        before = model[2].weight.detach().clone()
        for _ in training.steps(3):
            model(torch.ones(2, 6)).sum().backward()
            training.update()
    assert (model[0].weight.numpy() == frozen).all()
    if not training.is_server:
        assert not torch.equal(model[2].weight, before)
