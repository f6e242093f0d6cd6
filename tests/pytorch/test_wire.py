"""DistributedDataParallel over a compressed wire: hosts are those of different names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pytorch.groups import RANK, SIZE, group_of_all, torch

import gradred

pytest.importorskip("gradred.torch")
import gradred.torch as hvd
from gradred import torch_wire

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = [
    pytest.mark.usefixtures("initialised"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
dist = torch.distributed
DDP = torch.nn.parallel.DistributedDataParallel


def hosts(layout: str) -> list[int]:
    """The host of each rank: each its own, all on one, or the last one alone."""
    apart = {"apart": list(range(SIZE)), "one": [0] * SIZE}
    return apart.get(layout, [0] * (SIZE - 1) + [1])


@pytest.fixture(params=["apart", "one", "last alone"])
def layout(request: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found = hosts(request.param)
    monkeypatch.setattr(torch_wire.socket, "gethostname", lambda: f"h{found[RANK]}")
    return found


def through(x: Any, wire: str) -> Any:
    coded, y = np.zeros(gradred._core.wire_bytes(wire, x.size), "u1"), np.empty_like(x)
    gradred._core.encode_wire(wire, x.ctypes.data, x.size, coded.ctypes.data)
    gradred._core.decode_wire(wire, coded.ctypes.data, x.size, y.ctypes.data, False)
    return y


def reference(x: list[Any], layout: list[int], wire: str) -> Any:
    """The means by the definition of docs/wire.md."""
    names = sorted(set(layout))
    sums = [np.sum([x[r] for r in range(SIZE) if layout[r] == h], 0, "f4") for h in names]
    sums = [one / np.float32(SIZE) for one in sums]
    if len(names) == 1:
        return sums[0]
    each = -(-x[0].size // (128 * len(names))) * 128
    parts = []
    for owner in range(len(names)):
        part = slice(owner * each, (owner + 1) * each)
        total = np.zeros_like(sums[0][part])
        for host, own in enumerate(sums):
            total += own[part] if host == owner else through(own[part].copy(), wire)
        parts.append(through(total, wire))
    return np.concatenate(parts)


@pytest.mark.parametrize("form", gradred.WIRES)
def test_means_are_those_of_the_definition(group_of_all: Any, layout: list[int], form: str) -> None:
    state = torch_wire.Wire(form)
    for count in (1, 128, 5000):
        # Halves, so that sums inside a host are exact in any order.
        x = [
            np.random.default_rng(r).integers(-99, 99, count).astype("f4") / 2 for r in range(SIZE)
        ]
        mine = torch.from_numpy(x[RANK].copy())
        state.average(mine)
        assert mine.numpy().tobytes() == reference(x, layout, form).tobytes(), count


def trained(form: str | None) -> tuple[float, bytes]:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)]
    ddp = DDP(torch.nn.Sequential(*layers))
    if form is not None:
        ddp.register_comm_hook(torch_wire.Wire(form), torch_wire.compress)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    made = torch.Generator().manual_seed(7 + RANK)
    for _ in range(60):
        x = torch.randn(32, 16, generator=made)
        loss = (ddp(x) - x[:, :1] * x[:, 1:2]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    bits = b"".join(one.detach().numpy().tobytes() for one in ddp.parameters())
    return float(total) / SIZE, bits


@pytest.mark.parametrize("form", ["int8", "bf16"])
def test_training_ends_alike_and_with_the_same_bits_on_all_ranks(
    group_of_all: Any, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(torch_wire.socket, "gethostname", lambda: f"h{RANK}")
    plain, _ = trained(None)
    loss, bits = trained(form)
    assert loss == pytest.approx(plain, rel=0.05)
    everyone: list[Any] = [None] * SIZE
    dist.all_gather_object(everyone, bits)
    assert set(everyone) == {bits}


def loss_beside_large_gradients(
    network: Any, weight: torch.nn.Parameter, optimizer: Any
) -> tuple[float, bytes]:
    """The share of the loss that is left, and the weights.

    All gradients are less than half a level of int4, but for one in each block, which alternates.
    """
    slopes, large = torch.full((256,), 0.05), torch.zeros(256)
    slopes[::128], large[::128] = 0, 1
    for step in range(250):
        loss = (slopes * (weight[0] - 1).square()).sum() / 2
        (loss + network(large * (-1) ** step)[0]).backward()
        optimizer.step()
        optimizer.zero_grad()
    left = (slopes * (weight[0].detach() - 1).square()).sum() / slopes.sum()
    return float(left), weight.detach().numpy().tobytes()


def by_ddp(wire: Any) -> tuple[float, bytes]:
    ddp = DDP(torch.nn.Linear(256, 1, bias=False))
    weight = next(ddp.parameters())
    with torch.no_grad():
        weight.zero_()
    if wire is not None:
        ddp.register_comm_hook(torch_wire.Wire(**wire), torch_wire.compress)
    return loss_beside_large_gradients(ddp, weight, torch.optim.SGD([weight], lr=0.5))


def by_horovod(wire: Any) -> tuple[float, bytes]:
    network = torch.nn.Linear(256, 1, bias=False)
    with torch.no_grad():
        network.weight.zero_()
    compression = hvd.Compression.none if wire is None else hvd.Compression.wire(**wire)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
    return loss_beside_large_gradients(network, network.weight, optimizer)


@pytest.mark.skipif(SIZE == 1, reason="one host compresses nothing")
@pytest.mark.parametrize("trained_by", [by_ddp, by_horovod])
def test_int4_with_feedback_reaches_the_loss_of_plain_and_without_it_does_not(
    group_of_all: Any, monkeypatch: pytest.MonkeyPatch, trained_by: Any
) -> None:
    monkeypatch.setattr(torch_wire.socket, "gethostname", lambda: f"h{RANK}")
    plain, _ = trained_by(None)
    loss, bits = trained_by({"form": "int4", "feedback": True})
    assert plain < 0.01
    assert loss < 0.01
    average = torch_wire.Wire.average
    monkeypatch.setattr(torch_wire.Wire, "average", lambda wire, vector, _: average(wire, vector))
    without, _ = trained_by({"form": "int4", "feedback": True})
    assert without > 0.9
    everyone: list[Any] = [None] * SIZE
    dist.all_gather_object(everyone, bits)
    assert set(everyone) == {bits}


def test_horovods_optimizer_has_the_means_of_ddps_hook(
    group_of_all: Any, layout: list[int]
) -> None:
    state = torch_wire.Wire("int4", feedback=True)
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 5), (300,), (1,))]
    twins = [torch.nn.Parameter(one.detach().clone()) for one in weights]
    named = [(f"{place}", one) for place, one in enumerate(twins)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(twins, lr=1.0), named, hvd.Compression.wire("int4", feedback=True)
    )
    made = torch.Generator().manual_seed(RANK)
    for step in range(5):
        slopes = [torch.randn(one.shape, generator=made) for one in weights]
        if step == 3:
            optimizer.load_state_dict(optimizer.state_dict())  # nothing is owed from then on
            state.reset()
        vector = torch.cat([one.flatten() for one in slopes])
        state.average(vector, weights)
        sum((one * slope).sum() for one, slope in zip(twins, slopes, strict=True)).backward()
        optimizer.synchronize()
        assert torch.equal(torch.cat([one.grad.flatten() for one in twins]), vector)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()


def test_what_feedback_does_not_serve_is_refused() -> None:
    with pytest.raises(gradred.UsageError, match="form='auto' is none"):
        hvd.Compression.wire(feedback=True)
    wire = hvd.Compression.wire("int4", feedback=True)
    with pytest.raises(gradred.UsageError, match="belongs to a parameter"):
        hvd.allreduce(torch.ones(3), compression=wire)
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for options in ({"groups": 1}, {"op": hvd.Adasum}, {"gradient_as_bucket_view": True}):
        with pytest.raises(ValueError, match="feedback averages all gradients"):
            hvd.DistributedOptimizer(optimizer, compression=wire, **options)
    if SIZE > 1:
        optimizer = hvd.DistributedOptimizer(optimizer, compression=wire)
        weight.sum().backward()
        with pytest.raises(gradred.UsageError, match=r"is of torch\.float64"):
            optimizer.step()


@pytest.mark.parametrize("form", ["int4", "int8", "bf16"])
def test_means_with_feedback_add_up_to_exact_ones(
    group_of_all: Any, layout: list[int], form: str
) -> None:
    state = torch_wire.Wire(form, feedback=True)
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 5), (300,), (1,))]
    count = sum(one.numel() for one in weights)
    total, exact = torch.zeros(count), torch.zeros(count)
    for step in range(40):
        x = torch.from_numpy(
            np.random.default_rng(step * SIZE + RANK).standard_normal(count)
        ).float()
        mean = x.clone()
        dist.all_reduce(mean)
        state.average(x, weights)
        total, exact = total + x, exact + mean / SIZE
    # What is owed is less than a few errors of one encoding, however many steps there were.
    error = {"int4": 1 / 14, "int8": 1 / 254, "bf16": 1 / 256}[form]
    assert float((total - exact).abs().max()) < 16 * error
    # A NaN is not owed for ever.
    state.average(torch.full((count,), float("nan")), weights)
    x = torch.ones(count)
    state.average(x, weights)
    assert bool(torch.isfinite(x).all())


def test_wrong_forms_are_refused(group_of_all: Any) -> None:
    with pytest.raises(gradred.UsageError, match="form='int3' is none"):
        torch_wire.Wire("int3")
    if SIZE > 1:
        with pytest.raises(gradred.UsageError, match="rank 0 has form='bf16'"):
            torch_wire.Wire("int8" if RANK else "bf16")
        with pytest.raises(gradred.UsageError, match="rank 0 has feedback=True"):
            torch_wire.Wire("int8", feedback=RANK == 0)


def test_gradients_of_another_type_are_refused(group_of_all: Any) -> None:
    ddp = DDP(torch.nn.Linear(3, 2).double())
    ddp.register_comm_hook(torch_wire.Wire("int8"), torch_wire.compress)
    with pytest.raises(Exception, match="carries float32, not"):
        ddp(torch.ones(4, 3).double()).sum().backward()
