"""Training on any number of ranks: the gradients of all micro-batches are added up by one tree."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, group_of_all, torch

import gradred

hvd = pytest.importorskip("gradred.torch")
from gradred import torch_leaves  # noqa: E402 (it imports torch)

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = [
    pytest.mark.usefixtures("initialised"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
DDP = torch.nn.parallel.DistributedDataParallel
LEAVES, STEPS = 12, 4  # 12 leaves are split evenly among 1, 2, 3, 4 and 6 ranks


def split() -> list[int]:
    """The leaves of each rank; unequal if there are five ranks, say."""
    return [LEAVES // SIZE + (rank < LEAVES % SIZE) for rank in range(SIZE)]


def model_of(dtype: Any) -> Any:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3)]
    return torch.nn.Sequential(*layers).to(dtype)


def micro_batches(dtype: Any) -> Any:
    made = torch.Generator().manual_seed(7)
    return torch.randn(STEPS, LEAVES, 4, 6, generator=made).to(dtype)


def trained(model: Any, parameters: list[Any], optimizer: Any, batches: Any) -> list[Any]:
    for batch in batches:
        for micro_batch in batch:
            model(micro_batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [one.detach() for one in parameters]


def alone(dtype: Any) -> list[Any]:
    """The parameters that one process trains with all micro-batches, by the definition."""
    model = model_of(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in micro_batches(dtype):
        gradients = []
        for micro_batch in batch:
            model(micro_batch).square().mean().backward()
            gradients.append([one.grad + 0.0 for one in model.parameters()])
            optimizer.zero_grad()
        for one, found in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            one.grad = tree(list(found)) / LEAVES
        optimizer.step()
        optimizer.zero_grad()
    return [one.detach() for one in model.parameters()]


def tree(leaves: list[Any]) -> Any:
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return tree(leaves[:half]) + tree(leaves[half:])


def own(batches: Any) -> Any:
    begin = sum(split()[:RANK])
    return batches[:, begin : begin + split()[RANK]]


def require_same_bits(found: list[Any], dtype: Any) -> None:
    bits = torch.int16 if dtype == torch.bfloat16 else torch.int32
    for mine, wanted in zip(found, alone(dtype), strict=True):
        differ = int((mine.view(bits) != wanted.view(bits)).sum())
        assert differ == 0, f"{differ} of {mine.numel()} numbers"


divides = pytest.mark.skipif(LEAVES % SIZE > 0, reason="ranks have equal numbers of leaves")


@divides
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("bucket_cap_mb", [0.0002, 25])
def test_ddp_trains_to_the_same_bits(dtype: Any, bucket_cap_mb: float, as_view: bool) -> None:
    model = model_of(dtype)
    ddp = DDP(model, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=as_view)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    state = torch_leaves.Leaves(LEAVES // SIZE, optimizer)
    ddp.register_comm_hook(state, torch_leaves.sum_leaves)
    require_same_bits(
        trained(ddp, list(model.parameters()), optimizer, own(micro_batches(dtype))), dtype
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distributed_optimizer_trains_to_the_same_bits(dtype: Any) -> None:
    model = model_of(dtype)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        model.named_parameters(),
        leaves=split(),
    )
    found = trained(model, list(model.parameters()), optimizer, own(micro_batches(dtype)))
    require_same_bits(found, dtype)


def test_sum_of_leaves_is_not_divided() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    plain = torch.optim.SGD([weight], lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Sum, leaves=2)
    for _ in range(2):
        weight.sum().backward()
    optimizer.step()
    assert weight.tolist() == [1 - 2 * SIZE] * 3


def test_parameter_without_gradients_counts_as_zeros() -> None:
    used, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([used, unused], lr=1.0), leaves=1)
    (used.sum() + (unused.sum() if RANK == 0 else 0)).backward()
    optimizer.step()
    assert used.tolist() == [0] * 3
    assert unused.tolist() == pytest.approx([1 - 1 / SIZE] * 2)


def test_a_step_before_the_last_backward_pass_is_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), leaves=2)
    weight.sum().backward()
    with pytest.raises(gradred.UsageError, match="1 of 2 backward passes"):
        optimizer.step()
    weight.sum().backward()
    with pytest.raises(AssertionError, match="more than"):
        weight.sum().backward()
    optimizer.step()
    assert weight.tolist() == [0] * 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"backward_passes_per_step": 2}, "Leave backward_passes_per_step out"),
        ({"compression": "fp16"}, "without compression"),
        ({"gradient_as_bucket_view": True}, "without compression"),
        ({"op": "Adasum"}, "Use op=Average or op=Sum"),
        ({"op": "Max"}, "Use op=Average or op=Sum"),
        ({"gradient_predivide_factor": 2.0}, "without compression"),
    ],
)
def test_options_that_do_not_go_with_leaves(arguments: dict[str, Any], text: str) -> None:
    if arguments.get("compression"):
        arguments = {"compression": hvd.Compression.fp16}
    if arguments.get("op"):
        arguments = {"op": getattr(hvd, arguments["op"])}
    weight = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), leaves=1, **arguments)


def ddp_of(leaves: int, model: Any, **how: Any) -> tuple[Any, Any, Any]:
    ddp = DDP(model, **how)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    state = torch_leaves.Leaves(leaves, optimizer)
    ddp.register_comm_hook(state, torch_leaves.sum_leaves)
    return ddp, optimizer, state


class OfTwo(torch.nn.Module):  # type: ignore[misc]
    """Uses its second weight only where it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.ones(()))
        self.b = torch.nn.Parameter(torch.ones(()))

    def forward(self, uses: bool) -> Any:
        return self.a + self.b if uses else self.a * 1


@pytest.mark.skipif(4 % SIZE > 0, reason="ranks have equal numbers of leaves")
@pytest.mark.parametrize("as_view", [False, True])
def test_parameter_that_the_last_pass_does_not_use(as_view: bool) -> None:
    how = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
    ddp, optimizer, _ = ddp_of(4 // SIZE, OfTwo(), **how)
    for _ in range(2):
        for leaf in range(RANK * 4 // SIZE, (RANK + 1) * 4 // SIZE):
            ddp(leaf == 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert (ddp.module.a.item(), ddp.module.b.item()) == (-1.0, 0.5)


def test_ddp_step_after_another_number_of_passes_is_refused() -> None:
    ddp, optimizer, state = ddp_of(2, torch.nn.Linear(2, 1, bias=False))
    before = ddp.module.weight.detach().clone()
    for passes in (1, 3):
        for _ in range(passes):
            ddp(torch.ones(1, 2)).sum().backward()
        with pytest.raises(gradred.UsageError, match="1 of 2 backward passes"):
            optimizer.step()
        state.reset()
        optimizer.zero_grad()
    with ddp.no_sync():
        ddp(torch.ones(1, 2)).sum().backward()
    ddp(torch.ones(1, 2)).sum().backward()
    with pytest.raises(gradred.UsageError, match="without no_sync"):
        optimizer.step()
    state.reset()
    optimizer.zero_grad()
    for _ in range(2):
        ddp(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(ddp.module.weight, before - 1)


def test_numbers_of_leaves_that_do_not_fit() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    with pytest.raises(gradred.UsageError):
        torch_leaves.Leaves(0, optimizer)
    if SIZE > 1:
        text = "rank 0 has leaves=1, rank 1 leaves=2"
        with pytest.raises(gradred.UsageError, match=text):
            torch_leaves.Leaves(1 + RANK, optimizer)
        with pytest.raises(gradred.UsageError, match=text):
            hvd.DistributedOptimizer(optimizer, leaves=1 + RANK)
        with pytest.raises(gradred.UsageError, match="Pass one number for all ranks"):
            torch_leaves.Leaves([1] * (SIZE - 1) + [2], optimizer)


def test_step_after_synchronize_uses_its_gradients() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), leaves=1)
    (3 * weight.sum()).backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_value_([weight], 2.0)
    optimizer.step()
    assert weight.tolist() == [-1] * 3


def test_frozen_parameter_is_not_moved() -> None:
    weight, frozen = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    plain = torch.optim.SGD([weight, frozen], lr=1.0, weight_decay=0.5)
    optimizer = hvd.DistributedOptimizer(plain, leaves=1)
    frozen.requires_grad = False
    weight.sum().backward()
    optimizer.step()
    assert (weight.tolist(), frozen.tolist()) == ([-0.5] * 2, [1] * 2)


def test_gradients_that_are_no_leaves_are_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), leaves=1)
    weight.grad = torch.ones(3)
    with pytest.raises(gradred.UsageError, match="no backward pass has made"):
        optimizer.step()
    table = torch.nn.Embedding(4, 2, sparse=True)
    for dense in (False, True):
        plain = torch.optim.SGD(table.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(plain, leaves=1, sparse_as_dense=dense)
        if dense:
            table(torch.tensor([1])).sum().backward()
            optimizer.step()
        else:
            with pytest.raises(gradred.UsageError, match="sparse_as_dense=True"):
                table(torch.tensor([1])).sum().backward()
            table.zero_grad()
