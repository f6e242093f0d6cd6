"""`ddp_hook`: compressed gradients with error feedback in DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, group_of_all, torch

from gradred.compression import CODECS
from gradred.errors import UsageError
from gradred.schemes import DdpCompression, ddp_hook

__all__ = ["group_of_all"]  # a fixture of this module
DDP = torch.nn.parallel.DistributedDataParallel
STEPS = 150


def model_of() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))


def data_of() -> Any:
    made = torch.Generator().manual_seed(7)
    x = torch.randn(STEPS, SIZE, 8, 6, generator=made)
    return x, (x[..., :3] + 0.5 * x[..., 3:]).argmax(-1)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(x.reshape(-1, 6)), y.reshape(-1))


def trained(state: DdpCompression) -> float:
    """The loss on all batches after training in several buckets."""
    model = DDP(model_of(), bucket_cap_mb=0.0005)
    model.register_comm_hook(state, ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data_of()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, x[step, RANK], y[step, RANK]).backward()
        optimizer.step()
    return loss_of(model.module, x, y).item()


@pytest.mark.parametrize("name", [name for name in CODECS if name != "none"])
def test_compressed_gradients_reach_the_same_loss(name: str) -> None:
    begin = loss_of(model_of(), *data_of()).item()
    plain, state = DdpCompression("none"), DdpCompression(name)
    expected = trained(plain)
    assert expected < 0.5 * begin
    assert trained(state) < 1.15 * expected + 0.02
    assert 0 < state.sent_bytes < 0.9 * plain.sent_bytes


def test_compression_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="there is none"):
        DdpCompression("zip")
