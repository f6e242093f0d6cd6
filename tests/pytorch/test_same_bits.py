"""On one host sums have the same bits for any buckets, fusion and names of tensors."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from mpi.place import ON_ONE_HOST, WHY_NOT
from pytorch.given import name
from pytorch.groups import RANK, SIZE, dist, group_of_all, torch

hvd = pytest.importorskip("gradred.torch")

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = [
    pytest.mark.skipif(not ON_ONE_HOST, reason=WHY_NOT),
    pytest.mark.usefixtures("initialised"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

COUNT = 300_007
LENGTHS = (1, 12, 1001, 5013, 40_009, 70_001, COUNT - 116_037)


@functools.cache
def vector(rank: int) -> Any:
    made = np.random.default_rng(rank)
    wide = made.standard_normal(COUNT) * 2.0 ** made.integers(-9, 9, COUNT)
    return torch.from_numpy(wide.astype("float32"))


@functools.cache
def expected() -> Any:
    """The sum from rank 0 on."""
    return functools.reduce(torch.add, [vector(rank) for rank in range(SIZE)])


def mine() -> list[Any]:
    """Copies, each in separate memory."""
    return [part.clone() for part in vector(RANK).split(LENGTHS)]


def assert_same(parts: list[Any]) -> None:
    found = torch.cat(parts)
    assert torch.equal(found.view(torch.int32), expected().view(torch.int32))


def test_all_reduce_of_the_whole_and_of_parts() -> None:
    whole = vector(RANK).clone()
    dist.all_reduce(whole)
    assert_same([whole])
    parts = mine()
    for work in [dist.all_reduce(part, async_op=True) for part in reversed(parts)]:
        work.wait()
    assert_same(parts)


def test_coalesced_all_reduce() -> None:
    parts = mine()
    dist.all_reduce_coalesced(parts)
    assert_same(parts)


@pytest.mark.parametrize("fused", [True, False])
def test_names_of_horovod_fused_or_one_by_one(fused: bool) -> None:
    parts = mine()
    if fused:
        handles = [hvd.allreduce_async(part, name=name(), op=hvd.Sum) for part in parts]
        assert_same([hvd.synchronize(handle) for handle in handles])
    else:
        assert_same([hvd.allreduce(part, name=name(), op=hvd.Sum) for part in parts])


def test_grouped_allreduce() -> None:
    assert_same(hvd.grouped_allreduce(mine(), name=name(), op=hvd.Sum))


def gradients(bucket_mb: float, as_views: bool) -> Any:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 64) for _ in range(6)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=as_views
    )
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(RANK))
    for _ in range(2):  # after the first step the buckets are made anew
        model.zero_grad()
        model(x).square().mean().backward()
    return torch.cat([parameter.grad.ravel() for parameter in model.parameters()])


@pytest.mark.parametrize("as_views", [False, True])
def test_gradients_do_not_depend_on_the_buckets_of_ddp(as_views: bool) -> None:
    found = [gradients(mb, as_views) for mb in (0.001, 0.02, 25.0)]
    assert all(torch.equal(one, found[0]) for one in found)
