"""Steps of a compiled model: torch's compiler runs the group's methods."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, since, torch

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
STEPS = 3  # after the first, DistributedDataParallel makes its buckets anew, by broadcasts


def model_of() -> Any:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers).double()


def take_step(model: Any, optimizer: Any, inputs: list[Any]) -> None:
    losses = [model(x).pow(2).mean() for x in inputs]
    (sum(losses) / len(losses)).backward()
    optimizer.step()
    optimizer.zero_grad()


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="aot_eager")


WAYS = {
    "around DDP": (lambda model: compiled(torch.nn.parallel.DistributedDataParallel(model)), None),
    "within DDP": (lambda model: torch.nn.parallel.DistributedDataParallel(compiled(model)), None),
    "the whole step": (torch.nn.parallel.DistributedDataParallel, compiled),
}


@since(2, 5)
@pytest.mark.timeout(180)  # the first import of the compiler takes long
@pytest.mark.parametrize("way", WAYS)
def test_compiled_training_is_that_of_one_process(way: str) -> None:
    wrapped, stepped = WAYS[way]
    made = torch.Generator().manual_seed(3)
    inputs = torch.randn(STEPS, SIZE, 5, 6, generator=made, dtype=torch.float64)
    alone = model_of()
    model = wrapped(copy.deepcopy(alone))
    optimizer, optimizer_alone = sgd(model), sgd(alone)
    step = stepped(take_step) if stepped else take_step
    for batch in inputs:
        step(model, optimizer, [batch[RANK]])
        take_step(alone, optimizer_alone, list(batch))
    for found, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, expected)
    torch.compiler.reset()
    dist.barrier()
