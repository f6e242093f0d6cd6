"""Wrong arguments of torch.distributed raise clear errors, on all ranks."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, torch

from gradred import UsageError

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.skipif(SIZE == 1, reason="takes several ranks"),
]

ones = torch.ones


def lists(tensor: Any, count: int = SIZE) -> list[Any]:
    return [tensor.clone() for _ in range(count)]


def of_root(tensors: list[Any]) -> list[Any] | None:
    return tensors if RANK == 0 else None


# Whether this PyTorch formats the arguments of a call that has failed, for its log.
LOGS_ARGUMENTS = "{args}" in inspect.getsource(torch.distributed.c10d_logger)


def masked() -> Any:
    module = pytest.importorskip("torch.masked")
    with warnings.catch_warnings():  # a prototype of PyTorch, which warns
        warnings.simplefilter("ignore")
        return module.masked_tensor(ones(3), torch.tensor([True, False, True]))


def freed() -> Any:
    if LOGS_ARGUMENTS:
        pytest.skip("this PyTorch reads a tensor without memory to log that it was refused")
    tensor = ones(1000)
    tensor.untyped_storage().resize_(0)
    return tensor


ON_ALL_RANKS: dict[str, tuple[Callable[[], object], str]] = {
    "too few outputs": (
        lambda: dist.all_gather(lists(ones(2), SIZE - 1), ones(2)),
        f"all_gather: the list has {SIZE - 1} tensors, and the group {SIZE} ranks",
    ),
    "outputs of another size": (
        lambda: dist.all_gather(lists(ones(3)), ones(2)),
        "all_gather: a tensor has 3 elements, another one 2",
    ),
    "an output of another size": (
        lambda: dist.all_gather_into_tensor(ones(2 * SIZE + 1), ones(2)),
        f"{2 * SIZE + 1} elements are not {SIZE} times 2",
    ),
    "an output of another type": (
        lambda: dist.all_gather_into_tensor(ones(2 * SIZE).double(), ones(2)),
        r"torch\.float64, another one of torch\.float32",
    ),
    "a scattered sum of another type": (
        lambda: dist.reduce_scatter_tensor(ones(2).double(), ones(2 * SIZE)),
        r"torch\.float32, another one of torch\.float64",
    ),
    "too few parts": (
        lambda: dist.reduce_scatter(ones(2), lists(ones(2), SIZE - 1)),
        f"reduce_scatter: the list has {SIZE - 1} tensors",
    ),
    "too many tensors to exchange": (
        lambda: dist.all_to_all(lists(ones(2), SIZE + 1), lists(ones(2), SIZE + 1)),
        f"all_to_all: the list has {SIZE + 1} tensors",
    ),
    "more than was expected": (
        lambda: dist.all_to_all(lists(ones(2)), lists(ones(3))),
        r"have sent \[3, .* and \[2, .* were expected",
    ),
    "a tensor with gaps": (
        lambda: dist.all_reduce(ones(8)[::2]),
        r"all_reduce: the tensor is not dense.*and then copy the result back",
    ),
    "another root of a gather": (
        lambda: dist.gather(ones(2), lists(ones(2)), RANK),
        "gather: ranks? .* named another root than this rank",
    ),
    "another root of a scatter": (
        lambda: dist.scatter(ones(2), lists(ones(2)), RANK),
        "scatter: ranks? .* named another root than this rank",
    ),
    "splits of another sum": (
        lambda: dist.all_to_all_single(ones(SIZE), ones(SIZE), [SIZE] * SIZE, [1] * SIZE),
        rf"output_split_sizes=.* the output has {SIZE} rows",
    ),
    "splits that others do not send": (
        lambda: dist.all_to_all_single(
            ones(SIZE), ones(SIZE), [0, 2, *[1] * (SIZE - 2)], [1] * SIZE
        ),
        r"have sent \[1, 1.* and \[0, 2.* were expected",
    ),
    "an output with less room": (
        lambda: dist.all_to_all_single(ones(SIZE - 1), ones(SIZE)),
        f"{SIZE} elements have come for a tensor of {SIZE - 1}",
    ),
}

ON_ONE_RANK: dict[str, tuple[Callable[[], object], str]] = {
    "an operation that its type has not": (
        lambda: dist.all_reduce(ones(4), dist.ReduceOp.SUM if RANK else dist.ReduceOp.BAND),
        "band is not defined for float32. Use one of sum, prod, min, max, avg$",
    ),
    "a tensor with gaps": (
        lambda: dist.all_reduce(ones(8)[::2] if RANK == 0 else ones(4)),
        "all_reduce: the tensor is not dense",
    ),
    "splits of more rows than there are": (
        lambda: dist.all_to_all_single(ones(SIZE), ones(SIZE), None, [1 + (RANK == 0)] * SIZE),
        f"has {SIZE} rows, and the splits give out {2 * SIZE}",
    ),
    "too few results": (
        lambda: dist.gather(ones(2), of_root(lists(ones(2), SIZE - 1))),
        f"gather: the list has {SIZE - 1} tensors",
    ),
    "results of another size": (
        lambda: dist.gather(ones(2), of_root(lists(ones(3)))),
        "gather: a tensor has 3 elements, another one 2",
    ),
    "too few tensors to scatter": (
        lambda: dist.scatter(ones(2), of_root(lists(ones(2), SIZE - 1))),
        f"scatter: the list has {SIZE - 1} tensors",
    ),
    "tensors to scatter of another size": (
        lambda: dist.scatter(ones(2), of_root(lists(ones(3)))),
        "scatter: a tensor has 2 elements, another one 3",
    ),
}


def require_that_the_group_goes_on() -> None:
    x = ones(3)
    dist.all_reduce(x)
    assert (x == SIZE).all()


@pytest.mark.parametrize("case", ON_ALL_RANKS)
def test_what_does_not_fit_is_named(case: str) -> None:
    call, text = ON_ALL_RANKS[case]
    with pytest.raises(UsageError, match=text):
        call()
    require_that_the_group_goes_on()


@pytest.mark.parametrize("case", ON_ONE_RANK)
def test_what_one_rank_refuses_ends_the_others_calls(case: str) -> None:
    call, text = ON_ONE_RANK[case]
    with pytest.raises(UsageError, match=text if RANK == 0 else "rank 0 has refused its arguments"):
        call()
    require_that_the_group_goes_on()


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_gather", "send"])
@pytest.mark.parametrize(
    ("tensor", "text"),
    [(masked, "MaskedTensor has a mask"), (freed, "has 1000 elements, but no memory")],
)
def test_tensors_that_are_no_numbers_are_refused(
    collective: str, tensor: Callable[[], Any], text: str
) -> None:
    calls: dict[str, Callable[[Any], object]] = {
        "all_reduce": dist.all_reduce,
        "broadcast": lambda x: dist.broadcast(x, 0),
        "all_gather": lambda x: dist.all_gather(lists(ones(x.shape)), x),
        "send": lambda x: dist.send(x, (RANK + 1) % SIZE),
    }
    with pytest.raises(UsageError, match=text):
        calls[collective](tensor())
    require_that_the_group_goes_on()
