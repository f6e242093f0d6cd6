"""Adasum, the operation and the optimizer."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch.given import FLOATS, RANKS, batches, model_of, name

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("gradred.torch")

pytestmark = pytest.mark.usefixtures("initialised")


def adasum_of(vectors: list[Any]) -> Any:
    """Adasum by its definition, pair by pair."""
    while len(vectors) > 1:
        combined = []
        for a, b in zip(vectors[::2], vectors[1::2], strict=True):
            of_a = 1 - a @ b / (2 * (a @ a)) if a @ a > 0 else 1
            of_b = 1 - a @ b / (2 * (b @ b)) if b @ b > 0 else 1
            combined.append(of_a * a + of_b * b)
        vectors = combined
    return vectors[0]


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


@pytest.mark.skipif(not is_power_of_two(RANKS), reason="takes 1, 2, 4, ... ranks")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", ["ordinary", "near the largest's root", "tiny", "zero"])
def test_adasum_is_what_its_definition_says(dtype: Any, size: str) -> None:
    made = torch.Generator().manual_seed(3)
    all_of_them = torch.randn(hvd.size(), 70_000, generator=made, dtype=torch.float64)
    info = torch.finfo(dtype)
    root = 0.1 * info.max**0.5
    scale = {"ordinary": 1.0, "near the largest's root": root, "tiny": info.tiny, "zero": 0.0}
    if dtype is torch.float64 and size != "zero":
        scale[size] = 1.0  # otherwise its squares are out of range
    inputs = (all_of_them * scale[size]).to(dtype)
    x = inputs[hvd.rank()].clone().view(100, 700)
    expected = adasum_of(list(inputs.double() / (scale[size] or 1))) * scale[size]
    largest = float(inputs.abs().max())
    given = {
        "rtol": 4 * info.eps,
        "atol": 8 * max(largest * info.eps, info.smallest_normal * info.eps),
    }
    handle = hvd.allreduce_async(x, op=hvd.Adasum)
    assert x.flatten().equal(inputs[hvd.rank()])
    out = hvd.synchronize(handle)
    torch.testing.assert_close(out.flatten(), expected.to(dtype), **given)
    assert hvd.allreduce_(x, op=hvd.Adasum) is x
    assert x.equal(out)
    pair = hvd.grouped_allreduce([inputs[hvd.rank()], torch.ones(3)], op=hvd.Adasum)
    assert pair[0].equal(out.flatten())
    torch.testing.assert_close(pair[1], torch.ones(3))  # equal vectors: the result is their average
    columns = inputs[hvd.rank()].clone().view(1, 7, 100, 100)
    columns = columns.contiguous(memory_format=torch.channels_last)
    in_columns = hvd.allreduce(columns, op=hvd.Adasum)
    torch.testing.assert_close(in_columns.flatten(), out.flatten(), **given)


@pytest.mark.skipif(not is_power_of_two(RANKS), reason="takes 1, 2, 4, ... ranks")
def test_adasum_of_what_points_elsewhere_is_the_sum() -> None:
    x = torch.zeros(hvd.size())
    x[hvd.rank()] = 3.0
    assert hvd.allreduce(x, op=hvd.Adasum).tolist() == [3.0] * hvd.size()
    scaled = hvd.allreduce(x, op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.5)
    assert scaled.tolist() == [3.0] * hvd.size()
    assert hvd.allreduce(torch.zeros(0), op=hvd.Adasum).shape == (0,)
    assert hvd.allreduce(torch.tensor(2.0), op=hvd.Adasum) == 2.0
    with pytest.raises(ValueError, match="not supported"):
        hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)
    if hvd.size() > 1:
        label = name()
        op = hvd.Adasum if hvd.rank() == 0 else hvd.Sum
        with pytest.raises(hvd.HorovodInternalError, match="allgather"):
            hvd.allreduce(torch.ones(2), op=op, name=label)


@pytest.mark.skipif(is_power_of_two(RANKS), reason="takes 3, 5, ... ranks")
def test_adasum_takes_a_power_of_two_of_ranks() -> None:
    with pytest.raises(NotImplementedError, match="power of two"):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum)
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    with pytest.raises(NotImplementedError, match="power of two"):
        hvd.DistributedOptimizer(sgd, op=hvd.Adasum)


@pytest.mark.skipif(RANKS == 1 or not is_power_of_two(RANKS), reason="takes 2, 4, ... ranks")
@pytest.mark.parametrize("passes", [1, 2])
def test_adasum_optimizer_reduces_what_steps_change(passes: int) -> None:
    model = model_of()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Adasum, backward_passes_per_step=passes)
    alone = [model_of() for _ in range(hvd.size())]
    plain = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in alone]
    for step in batches(3, passes):
        optimizer.zero_grad()
        for x in step:
            model(x[hvd.rank()]).square().mean().backward()
        optimizer.synchronize()
        optimizer.step()
        before = [[p.detach().clone() for p in m.parameters()] for m in alone]
        for rank, (its_model, its_optimizer) in enumerate(zip(alone, plain, strict=True)):
            its_optimizer.zero_grad()
            for x in step:
                its_model(x[rank]).square().mean().backward()
            its_optimizer.step()
        with torch.no_grad():
            for index, parameters in enumerate(zip(*(m.parameters() for m in alone), strict=True)):
                start = before[0][index]
                found = adasum_of([(p - start).flatten() for p in parameters]).view_as(start)
                for parameter in parameters:
                    parameter.copy_(start + found)
        for parameter, expected in zip(model.parameters(), alone[0].parameters(), strict=True):
            torch.testing.assert_close(parameter, expected)
    with pytest.raises(AssertionError, match="skip_synchronize"), optimizer.skip_synchronize():
        pass
    for _ in range(passes):
        model(batches(1)[0, 0, 0]).sum().backward()
    loss = model(batches(1)[0, 0, 0]).sum()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        loss.backward()
