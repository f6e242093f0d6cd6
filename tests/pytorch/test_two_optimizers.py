"""Two wrapped optimizers whose gradients are reduced at the same time, as in a GAN."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from pytorch.given import RANKS, hvd, name, torch

pytestmark = pytest.mark.usefixtures("initialised")

several_ranks = pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
TAKEN = r"another DistributedOptimizer has this name already.*named_parameters\(prefix="
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "groups": {"groups": 1},
    "buckets": {"gradient_as_bucket_view": True},
}


def two_models() -> tuple[Any, Any]:
    torch.manual_seed(3)
    return torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)


def wrapped(model: Any, named: Any, **given: Any) -> Any:
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named, **given)


def loss_of(*models: Any) -> Any:
    return torch.nn.Sequential(*models)(torch.full((2, 3), float(hvd.rank()))).sum()


@several_ranks
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("named", [False, True])
def test_the_same_names_at_one_time_are_an_error_that_says_what_to_pass(
    named: bool, options: str
) -> None:
    generator, discriminator = two_models()
    made = [
        wrapped(one, one.named_parameters() if named else None, **OPTIONS[options])
        for one in (generator, discriminator)
    ]
    loss = loss_of(generator, discriminator)
    expected = "reducing '(weight|bias)': " if named else r"reducing 'allreduce.noname.0.\d': "
    with pytest.raises(ValueError, match=expected + TAKEN):
        loss.backward()
    made[1].synchronize()
    # this drops the reductions that the backward pass began
    made[0].load_state_dict(made[0].state_dict())
    made[0].step()


@several_ranks
@pytest.mark.skipif(RANKS & (RANKS - 1) != 0, reason="takes 2, 4, ... ranks")
def test_adasum_says_it_of_the_names_of_steps() -> None:
    generator, discriminator = two_models()
    averaged = wrapped(discriminator, None)
    summed = wrapped(generator, None, op=hvd.Adasum)
    loss_of(generator, discriminator).backward()
    with pytest.raises(ValueError, match=TAKEN):
        summed.step()
    averaged.step()


@pytest.mark.parametrize("options", OPTIONS)
def test_names_with_a_prefix_each_are_reduced_at_one_time(options: str) -> None:
    models, alone = two_models(), two_models()
    prefix = name()
    made = [
        wrapped(one, one.named_parameters(prefix=f"{prefix}.{index}"), **OPTIONS[options])
        for index, one in enumerate(models)
    ]
    for _ in range(2):
        loss_of(*models).backward()
        for optimizer in made:
            optimizer.step()
        for optimizer in made:
            optimizer.zero_grad()
    parameters = [parameter for model in models for parameter in model.parameters()]
    for parameter in parameters:
        every = hvd.allgather(parameter.detach().reshape(1, -1))
        assert all(one.equal(every[0]) for one in every)
    assert not any(
        one.equal(other)
        for model, its in zip(models, alone, strict=True)
        for one, other in zip(model.parameters(), its.parameters(), strict=True)
    )


def test_the_same_names_one_after_the_other_are_right() -> None:
    made = [wrapped(one, one.named_parameters()) for one in two_models()]
    for _ in range(2):
        for optimizer in made:
            sum(one.sum() for one in optimizer.param_groups[0]["params"]).backward()
            optimizer.step()
            optimizer.zero_grad()


@several_ranks
def test_names_of_an_optimizer_that_nobody_uses_any_more_are_free() -> None:
    one, another = two_models()
    first = wrapped(one, None)
    one.weight.sum().backward()
    del first
    gc.collect()
    hvd.barrier()  # all ranks have submitted it, so it ends
    second = wrapped(another, None)
    for _ in range(2):
        another(torch.ones(1, 4)).sum().backward()
        second.step()
        second.zero_grad()


@several_ranks
def test_the_same_names_in_two_process_sets_are_right() -> None:
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    try:
        models = two_models()
        mine = wrapped(models[0], None)
        alone = wrapped(models[1], None, process_set=sets[hvd.rank()])
        loss_of(*models).backward()
        mine.step()
        alone.step()
    finally:
        for one in sets:
            hvd.remove_process_set(one)
