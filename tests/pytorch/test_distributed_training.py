"""Layers above torch.distributed on the backend "gradred".

DDP, FSDP, meshes and functional collectives.
"""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, torch

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # names that torch 2.13 renamed


def model_of() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    ).double()


def data_of(steps: int) -> Any:
    made = torch.Generator().manual_seed(7)
    return torch.randn(steps, SIZE, 4, 6, generator=made, dtype=torch.float64)


def losses_of_one_process(steps: int) -> list[float]:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for batch in data_of(steps):
        optimizer.zero_grad()
        loss = model(batch.reshape(-1, 6)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def losses_of(model: Any, steps: int) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for batch in data_of(steps):
        optimizer.zero_grad()
        loss = model(batch[RANK]).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(float(mean))
    return losses


def test_ddp_trains_like_one_process() -> None:
    model = torch.nn.parallel.DistributedDataParallel(model_of(), bucket_cap_mb=0.0002)
    torch.testing.assert_close(losses_of(model, 6), losses_of_one_process(6))


def test_ddp_reduces_sparse_gradients() -> None:
    torch.manual_seed(1)
    model = torch.nn.Embedding(10, 3, sparse=True)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    parallel(torch.tensor([RANK, RANK + 1, 7])).sum().backward()
    assert model.weight.grad.is_sparse
    alone = torch.nn.Embedding(10, 3)
    for rank in range(SIZE):
        (alone(torch.tensor([rank, rank + 1, 7])).sum() / SIZE).backward()
    torch.testing.assert_close(model.weight.grad.to_dense(), alone.weight.grad)


def test_fsdp2_trains_like_one_process() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("torch is older than 2.6, whose FSDP2 wants a GPU")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = model_of()
    mesh = init_device_mesh("cpu", (SIZE,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.testing.assert_close(losses_of(model, 5), losses_of_one_process(5))


def test_tensors_on_a_mesh() -> None:
    pytest.importorskip("torch.distributed.device_mesh", reason="torch is older than 2.2")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("outer", "inner"))
    x = torch.arange(6.0 * SIZE).reshape(2 * SIZE, 3)
    sharded = distribute_tensor(x, mesh["inner"], [Shard(0)])
    assert sharded.to_local().shape == (2, 3)
    assert torch.equal(sharded.full_tensor(), x)
    assert torch.equal(sharded.sum().full_tensor(), x.sum())
    assert torch.equal(sharded.redistribute(mesh["inner"], [Replicate()]).to_local(), x)


def test_functional_collectives() -> None:
    from torch.distributed import _functional_collectives as functional

    x = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert (x + 0 == SIZE).all()
    y = functional.all_gather_tensor(torch.full((2,), RANK), 0, dist.group.WORLD)
    assert (y + 0).tolist() == [rank for rank in range(SIZE) for _ in (0, 1)]


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_errors_of_functional_collectives_come_when_the_result_is_used() -> None:
    from torch.distributed import _functional_collectives as functional

    x = functional.all_reduce(torch.ones(3 + (RANK == 0)), "sum", dist.group.WORLD)
    with pytest.raises(ValueError, match="Mismatched allreduce tensor shapes") as raised:
        x + 0
    # PyTorch 2.1 waits once more when the result is deleted: here, not at the end of the process.
    traceback.clear_frames(raised.tb)
    del x, raised
    y = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert (y + 0 == SIZE).all()


def test_fsdp_with_memory_of_the_group() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard") or not hasattr(
        fsdp.FSDPModule, "set_allocate_memory_from_process_group_for_comm"
    ):
        pytest.skip("torch is older than 2.8")
    torch.manual_seed(1)
    model = fsdp.fully_shard(torch.nn.Linear(64, 64))
    model.set_allocate_memory_from_process_group_for_comm(True)
    torch.manual_seed(1)
    alone = torch.nn.Linear(64, 64)
    x = torch.ones(4, 64)
    torch.testing.assert_close(model(x), alone(x))
    model(x).sum().backward()
    alone(x).sum().backward()
    torch.testing.assert_close(model.weight.grad.full_tensor(), alone.weight.grad)
