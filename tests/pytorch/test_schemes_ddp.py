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


class BothInOneBucket(torch.nn.Module):  # type: ignore[misc]
    """Its gradients are ready in the order of its parameters, so DDP lays the bucket out anew."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.full((4,), 1.0))
        self.second = torch.nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x: Any) -> Any:
        return (x * self.first * self.second).sum()


@pytest.mark.parametrize("cap", [0.000016, 25])
def test_what_is_owed_follows_each_parameter_to_the_buckets_of_later_steps(cap: float) -> None:
    """With a constant gradient the sum of what was sent stays near the number of steps."""
    model = DDP(BothInOneBucket(), bucket_cap_mb=cap)
    state = DdpCompression("topk:0.25")
    model.register_comm_hook(state, ddp_hook)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    sent = [torch.zeros(4), torch.zeros(4)]
    for _ in range(3):
        model.zero_grad()
        model(x).backward()
        for total, one in zip(sent, model.parameters(), strict=True):
            total += one.grad
    owed = {key: state.compressor._states[key]["owed"] for key in state._keys}
    assert sorted(number for key in owed for number in key) == [0, 1]
    parameters = list(model.parameters())
    for key, values in owed.items():
        for number, rest in zip(key, values.reshape(len(key), 4), strict=True):
            which = next(i for i, one in enumerate(parameters) if one is state._parameters[number])
            given = 3 * x * (3.0, 1.0)[which]
            torch.testing.assert_close(sent[which] + torch.from_numpy(rest), given)


def test_compression_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="there is none"):
        DdpCompression("zip")
