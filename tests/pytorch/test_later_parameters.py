"""Parameters that a wrapped optimizer gets later, or that are unfrozen: gradients are reduced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from pytorch.given import RANKS, hvd, name, torch

pytestmark = pytest.mark.usefixtures("initialised")

OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "groups": {"groups": 2},
    "buckets": {"gradient_as_bucket_view": True},
    "two passes": {"backward_passes_per_step": 2},
}


def parameters(count: int) -> list[Any]:
    return [torch.nn.Parameter(torch.zeros(3)) for _ in range(count)]


def wrapped(members: list[Any], **given: Any) -> Any:
    prefix = name()
    named = [(f"{prefix}.{index}", parameter) for index, parameter in enumerate(members)]
    return hvd.DistributedOptimizer(torch.optim.SGD(members, lr=1.0), named, op=hvd.Sum, **given)


def require_steps_of_all_ranks(optimizer: Any, members: list[Any]) -> None:
    """Make two steps; the gradients of each parameter are the ranks' numbers."""
    before = [parameter.detach().clone() for parameter in members]
    total = sum(range(1, hvd.size() + 1)) * optimizer.backward_passes_per_step
    for step in (1, 2):
        optimizer.zero_grad()
        for _ in range(optimizer.backward_passes_per_step):
            sum((parameter * (hvd.rank() + 1)).sum() for parameter in members).backward()
        optimizer.step()
        for parameter, start in zip(members, before, strict=True):
            assert parameter.tolist() == (start - step * total).tolist()


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_of_thawed_parameters_are_reduced(options: str) -> None:
    members = parameters(4)
    for parameter in members[1:3]:
        parameter.requires_grad_(False)
    optimizer = wrapped(members, **OPTIONS[options])
    require_steps_of_all_ranks(optimizer, [members[0], members[3]])
    assert members[1].tolist() == [0.0] * 3
    for parameter in members[1:3]:  # layer after layer
        parameter.requires_grad_(True)
        require_steps_of_all_ranks(optimizer, [one for one in members if one.requires_grad])


def test_gradient_of_a_thawed_parameter_is_reduced_while_the_backward_pass_runs() -> None:
    first, second = parameters(2)
    second.requires_grad_(False)
    optimizer = wrapped([first, second])
    require_steps_of_all_ranks(optimizer, [first])
    second.requires_grad_(True)
    require_steps_of_all_ranks(optimizer, [first, second])
    second.sum().backward()
    if hvd.size() > 1:
        with pytest.raises(AssertionError, match="being reduced"):
            optimizer.zero_grad()
    optimizer.step()


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
def test_thawed_parameter_that_a_rank_has_no_gradient_of_counts_as_zeros() -> None:
    first, second = parameters(2)
    second.requires_grad_(False)
    optimizer = wrapped([first, second])
    second.requires_grad_(True)
    (first.sum() if hvd.rank() else first.sum() + second.sum()).backward()
    optimizer.step()
    assert second.tolist() == [-1.0] * 3


@pytest.mark.skipif(RANKS & (RANKS - 1) != 0, reason="takes 1, 2, 4, ... ranks")
def test_steps_of_thawed_parameters_are_summed_by_adasum() -> None:
    first, second = parameters(2)
    second.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, second], lr=1.0), op=hvd.Adasum)
    second.requires_grad_(True)
    (first.sum() + (second * (hvd.rank() + 1)).sum()).backward()
    optimizer.step()
    every = hvd.allgather(second.detach().reshape(1, -1))
    assert all(one.equal(every[0]) for one in every)


def test_thawed_parameters_of_a_step_with_a_closure_are_reduced() -> None:
    first, second = parameters(2)
    second.requires_grad_(False)
    optimizer = wrapped([first, second])
    second.requires_grad_(True)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = ((first + second) * (hvd.rank() + 1)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert second.tolist() == first.tolist() == [-float(sum(range(hvd.size() + 1)))] * 3


def add(optimizer: Any, members: list[Any]) -> None:
    optimizer.add_param_group({"params": members})


def append(optimizer: Any, members: list[Any]) -> None:
    optimizer.param_groups.append({**optimizer.param_groups[0], "params": members})


def extend(optimizer: Any, members: list[Any]) -> None:
    optimizer.param_groups[0]["params"].extend(members)


@pytest.mark.parametrize("way", [add, append, extend])
@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_of_parameters_that_were_added_are_reduced(
    options: str, way: Callable[[Any, list[Any]], None]
) -> None:
    members = parameters(5)
    members[4].requires_grad_(False)
    optimizer = wrapped(members[:2], **OPTIONS[options])
    require_steps_of_all_ranks(optimizer, members[:2])
    way(optimizer, members[2:])
    require_steps_of_all_ranks(optimizer, members[:4])
    assert members[4].tolist() == [0.0] * 3
    members[4].requires_grad_(True)
    require_steps_of_all_ranks(optimizer, members)
    others, copied = copy.deepcopy((members, optimizer))
    require_steps_of_all_ranks(copied, others)


def test_parameters_that_were_added_keep_the_names_that_they_were_given() -> None:
    members = parameters(3)
    named = [(f"{name()}.{index}", parameter) for index, parameter in enumerate(members)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(members[:1], lr=1.0), named)
    for parameter in members[1:]:
        optimizer.add_param_group({"params": [parameter]})
    assert [optimizer._parameter_names[one] for one in members] == [given for given, _ in named]


def test_two_optimizers_reduce_what_was_added_to_each_at_one_time() -> None:
    mine, others = parameters(2), parameters(2)
    one, another = wrapped(mine[:1]), wrapped(others[:1])
    add(one, mine[1:])
    add(another, others[1:])
    for _ in range(2):
        sum((x * (hvd.rank() + 1)).sum() for x in [*mine, *others]).backward()
        one.step()
        another.step()
        one.zero_grad()
        another.zero_grad()
    total = -2.0 * sum(range(hvd.size() + 1))
    assert all(x.tolist() == [total] * 3 for x in [*mine, *others])


@pytest.mark.parametrize("options", OPTIONS)
def test_a_frozen_parameter_stays_where_it_is(options: str) -> None:
    members = parameters(4)
    prefix = name()
    named = [(f"{prefix}.{index}", parameter) for index, parameter in enumerate(members)]
    own = torch.optim.SGD(members, lr=1.0, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(own, named, op=hvd.Sum, **OPTIONS[options])

    def step(moving: list[Any]) -> None:
        optimizer.zero_grad()
        for _ in range(optimizer.backward_passes_per_step):
            sum((parameter * (hvd.rank() + 1)).sum() for parameter in moving).backward()
        optimizer.step()

    step(members)
    for parameter in members[1:3]:
        parameter.requires_grad_(False)
    before = members[1].tolist()
    for _ in range(2):
        step([members[0], members[3]])
    assert members[1].tolist() == members[2].tolist() == before
    assert members[1].grad is None
    assert members[0].tolist() == members[3].tolist() != before
