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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("bucket_cap_mb", [0.0002, 25])
def test_ddp_trains_to_the_same_bits(dtype: Any, bucket_cap_mb: float, as_view: bool) -> None:
    model = model_of(dtype)
    ddp = DDP(model, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=as_view)
    ddp.register_comm_hook(torch_leaves.Leaves(split()), torch_leaves.sum_leaves)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
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
    ],
)
def test_options_that_do_not_go_with_leaves(arguments: dict[str, Any], text: str) -> None:
    if arguments.get("compression"):
        arguments = {"compression": hvd.Compression.fp16}
    if arguments.get("op"):
        arguments = {"op": hvd.Adasum}
    weight = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), leaves=1, **arguments)


def test_numbers_of_leaves_that_do_not_fit() -> None:
    with pytest.raises(gradred.UsageError, match="Pass a number for each"):
        torch_leaves.Leaves([1] * (SIZE + 1))
    none = [1] * SIZE
    none[RANK] = 0
    with pytest.raises(gradred.UsageError):
        torch_leaves.Leaves(none)
