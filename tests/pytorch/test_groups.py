"""`DistributedOptimizer(groups=...)`, and gradients that some ranks lack."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch.given import RANKS, name

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("gradred.torch")
gradients = pytest.importorskip("gradred.torch.gradients")

pytestmark = pytest.mark.usefixtures("initialised")


def parameters(count: int, **options: Any) -> list[Any]:
    return [torch.nn.Parameter(torch.zeros(3, **options)) for _ in range(count)]


def wrapped(members: list[Any], **given: Any) -> Any:
    sgd = torch.optim.SGD(members, lr=1.0)
    prefix = name()
    named = [(f"{prefix}.{index}", parameter) for index, parameter in enumerate(members)]
    return hvd.DistributedOptimizer(sgd, named, op=hvd.Sum, **given)


GROUPS = [None, 1, 2, 5, "lists"]


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("as_dense", [False, True])
@pytest.mark.parametrize("groups", GROUPS)
def test_all_gradients_are_reduced_whatever_a_group_has_in_it(
    groups: Any, as_dense: bool, passes: int
) -> None:
    size = hvd.size()
    frozen, plain, unused, of_one_rank, last = parameters(5)
    frozen.requires_grad_(False)
    table = torch.nn.Embedding(4, 3, sparse=True)
    torch.nn.init.zeros_(table.weight)
    members = [frozen, plain, table.weight, unused, of_one_rank, last]
    if groups == "lists":
        groups = [[frozen, plain, unused], [table.weight, of_one_rank]]
    given = {"groups": groups, "sparse_as_dense": as_dense, "backward_passes_per_step": passes}
    optimizer = wrapped(members, **given)
    for step in range(1, 4):
        optimizer.zero_grad()
        for _ in range(passes):
            loss = (plain * (hvd.rank() + 1)).sum() + last.sum()
            if hvd.rank() == 0:
                loss = loss + of_one_rank.sum()
            if step == 1 or hvd.rank() == 0:  # one rank may lack a sparse gradient, too
                loss = loss + table(torch.tensor([1])).sum()
            loss.backward()
        optimizer.step()
        made = step * passes
        assert plain.tolist() == [-made * size * (size + 1) / 2] * 3
        assert last.tolist() == [-made * size] * 3
        assert of_one_rank.tolist() == [-made] * 3
        assert table.weight[1].tolist() == [-(made + passes * (size - 1))] * 3
        assert not any(one.any() for one in (frozen, unused, table.weight[0]))


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
def test_a_gradient_that_is_sparse_on_some_ranks_alone_is_an_error_on_all() -> None:
    table = torch.nn.Embedding(4, 3, sparse=True)
    optimizer = wrapped([table.weight])
    if hvd.rank() == 0:
        table(torch.tensor([1])).sum().backward()
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched operations"):
        optimizer.step()


@pytest.mark.parametrize("groups", [1, 3])
def test_groups_of_any_size_and_type_go_on_where_a_rank_has_joined(groups: int) -> None:
    members = parameters(20) + parameters(20, dtype=torch.float64)
    images = torch.zeros(2, 4, 3, 5).to(memory_format=torch.channels_last)
    members += [torch.nn.Parameter(images.clone()) for _ in range(9)]
    optimizer = wrapped(members, groups=groups)
    for _ in range(hvd.rank() + 1):
        optimizer.zero_grad()
        sum(parameter.sum() for parameter in members).backward()
        optimizer.step()
    hvd.join()
    expected = -sum(hvd.size() - turn for turn in range(hvd.rank() + 1))
    assert all((parameter == expected).all() for parameter in members)


@pytest.mark.parametrize("as_view", [False, True])
def test_parameters_of_a_group_that_is_added_later_are_reduced(as_view: bool) -> None:
    first, second, frozen = parameters(3)
    frozen.requires_grad_(False)
    sgd = torch.optim.SGD([first], lr=0.5)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_as_bucket_view=as_view)
    optimizer.add_param_group({"params": [second, frozen]})
    for step in range(1, 3):
        optimizer.zero_grad()
        (first.sum() + second.sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
        assert first.tolist() == [-0.5 * step * hvd.size()] * 3
        assert second.tolist() == [-0.25 * step * hvd.size() * (hvd.size() + 1)] * 3


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
def test_a_group_is_reduced_before_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    first, frozen, second, third = parameters(4)
    frozen.requires_grad_(False)
    optimizer = wrapped([first, frozen, second, third], groups=2)
    started: list[int] = []
    begin = gradients.grouped_allreduce_async_
    monkeypatch.setattr(
        gradients,
        "grouped_allreduce_async_",
        lambda tensors, *rest, **how: started.append(len(tensors)) or begin(tensors, *rest, **how),
    )
    (first.sum() + second.sum() + third.sum()).backward()
    assert sorted(started) == [1, 2]
    optimizer.step()
    assert sorted(started) == [1, 2]


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
def test_a_grouped_allreduce_that_is_too_large_after_a_join_is_an_error_that_says_so() -> None:
    tensors, large = [torch.ones(2) for _ in range(17)], name()
    hvd.grouped_allreduce(tensors, op=hvd.Sum, name=large)
    if hvd.rank() > 0:
        with pytest.raises(hvd.HorovodInternalError, match="more than 16 arrays"):
            hvd.grouped_allreduce(tensors, op=hvd.Sum, name=large)
    hvd.join()
