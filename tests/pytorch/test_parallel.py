"""torch's modules above process groups: split models, pipelines, compiled models, checkpoints."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, since, torch

__all__ = ["group_of_all"]  # a fixture of this module
nn = torch.nn
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def model_of() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def same_gradient(found: Any, expected: Any) -> None:
    whole = found.full_tensor() if hasattr(found, "full_tensor") else found
    torch.testing.assert_close(whole, expected)


def mean_over_ranks(model: Any, inputs: Any) -> Any:
    """The loss of one process on the inputs of all ranks."""
    return sum(model(x).pow(2).mean() for x in inputs) / SIZE


def inputs_of_all() -> Any:
    made = torch.Generator().manual_seed(3)
    return torch.randn(SIZE, 5, 6, generator=made, dtype=torch.float64)


@since(2, 2)
def test_tensor_parallel_model_is_that_of_one_process() -> None:
    parallel = pytest.importorskip("torch.distributed.tensor.parallel")
    mesh = dist.device_mesh.init_device_mesh("cpu", (SIZE,))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 4 * SIZE), nn.Tanh(), nn.Linear(4 * SIZE, 3))
    alone = copy.deepcopy(model)
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    model = parallel.parallelize_module(model, mesh, plan)
    x = torch.randn(5, 6)
    y, expected = model(x), alone(x)
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    expected.sum().backward()
    same_gradient(model[0].weight.grad, alone[0].weight.grad)
    same_gradient(model[2].weight.grad, alone[2].weight.grad)


@since(2, 6)
@pytest.mark.skipif(SIZE == 1, reason="a pipeline of one stage")
@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_pipeline_gives_the_gradients_of_one_process(schedule: str) -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    torch.manual_seed(1)
    layers = [nn.Linear(6, 6) for _ in range(SIZE)]
    x, target = torch.randn(4 * SIZE, 6), torch.randn(4 * SIZE, 6)
    alone = nn.Sequential(*copy.deepcopy(layers))
    stage = pipelining.PipelineStage(layers[RANK], RANK, SIZE, torch.device("cpu"))
    loss = nn.MSELoss()
    run = getattr(pipelining, schedule)(stage, SIZE, loss_fn=loss)
    given = (x,) if RANK == 0 else ()
    made = run.step(*given, **({"target": target} if RANK == SIZE - 1 else {}))
    chunks = zip(x.chunk(SIZE), target.chunk(SIZE), strict=True)
    (sum(loss(alone(part), wanted) for part, wanted in chunks) / SIZE).backward()
    same_gradient(layers[RANK].weight.grad, alone[RANK].weight.grad)
    if RANK == SIZE - 1:
        torch.testing.assert_close(made, alone(x))


def test_compiled_model_under_ddp_learns_as_one_process() -> None:
    if not hasattr(torch, "compile"):
        pytest.skip("torch is older than 2.0")
    model, inputs = model_of(), inputs_of_all()
    alone = copy.deepcopy(model)
    compiled = torch.compile(nn.parallel.DistributedDataParallel(model), backend="aot_eager")
    compiled(inputs[RANK]).pow(2).mean().backward()
    mean_over_ranks(alone, inputs).backward()
    same_gradient(model[0].weight.grad, alone[0].weight.grad)


@since(2, 2)
def test_functional_collective_inside_a_compiled_function() -> None:
    functional = pytest.importorskip("torch.distributed._functional_collectives")

    def reduce(x: Any) -> Any:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    compiled = torch.compile(reduce, backend="aot_eager")
    assert (compiled(torch.ones(4)) == 2 * SIZE + 1).all()


@pytest.mark.skipif(SIZE % 2 == 1, reason="takes 2, 4, ... ranks")
def test_model_that_is_sharded_and_copied() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("torch is older than 2.6")
    mesh = dist.device_mesh.init_device_mesh(
        "cpu", (2, SIZE // 2), mesh_dim_names=("copies", "shards")
    )
    model, inputs = model_of(), inputs_of_all()
    alone = copy.deepcopy(model)
    fsdp.fully_shard(model, mesh=mesh)
    model(inputs[RANK]).pow(2).mean().backward()
    mean_over_ranks(alone, inputs).backward()
    same_gradient(model[0].weight.grad, alone[0].weight.grad)


def test_optimizer_whose_state_is_sharded() -> None:
    optim = pytest.importorskip("torch.distributed.optim")
    model, inputs = model_of(), inputs_of_all()
    alone = copy.deepcopy(model)
    parallel = nn.parallel.DistributedDataParallel(model)
    sharded = optim.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    whole = torch.optim.Adam(alone.parameters(), lr=0.1)
    for _ in range(2):
        sharded.zero_grad()
        whole.zero_grad()
        parallel(inputs[RANK]).pow(2).mean().backward()
        mean_over_ranks(alone, inputs).backward()
        sharded.step()
        whole.step()
    torch.testing.assert_close(model[0].weight, alone[0].weight)


def test_uneven_data_under_ddp() -> None:
    join = pytest.importorskip("torch.distributed.algorithms.join")
    model = nn.parallel.DistributedDataParallel(model_of())
    with join.Join([model]):
        for _ in range(2 + RANK):
            model(inputs_of_all()[RANK]).sum().backward()
    dist.barrier()


@pytest.mark.parametrize("beside", [False, True])
def test_checkpoints(beside: bool, tmp_path: Path) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    folders = [str(tmp_path)]
    dist.broadcast_object_list(folders)
    (folder,) = folders
    model = model_of()
    state = {"model": model.state_dict()}
    if not hasattr(dcp, "async_save"):
        pytest.skip("torch is older than 2.3")
    if beside:  # the model may be trained during the save
        dcp.async_save(state, checkpoint_id=folder).result(30)
    else:
        dcp.save(state, checkpoint_id=folder)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found = {"model": model.state_dict()}
    dcp.load(found, checkpoint_id=folder)
    for name, value in expected.items():
        assert torch.equal(found["model"][name], value)
