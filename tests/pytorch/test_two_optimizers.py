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


# ---- two optimizers over the same parameters ----------------------------------------------------

STEPS = 12
BOTH = r"the (SGD|Adam) of '.*first.*' and \d+ more.*the (SGD|Adam) of '.*second.*' and \d+ more"


def layers() -> Any:
    torch.manual_seed(5)
    return torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)]).double()


def pair_over(model: Any, one: dict[str, Any], other: dict[str, Any]) -> tuple[Any, Any]:
    """Two optimizers over the same parameters, under different names."""
    prefix = name()
    first = list(model.named_parameters(prefix=f"{prefix}.first"))
    second = list(model.named_parameters(prefix=f"{prefix}.second"))[2:]
    sgd, adam = (torch.optim.SGD, torch.optim.Adam)
    return (
        hvd.DistributedOptimizer(sgd([p for _, p in first], lr=0.0), first, **one),
        hvd.DistributedOptimizer(adam([p for _, p in second], lr=0.0), second, **other),
    )


def compute(model: Any, step: int, rank: int) -> Any:
    numbers = torch.Generator().manual_seed(100 * step + rank)
    return model(torch.randn(4, 16, dtype=torch.double, generator=numbers)).pow(2).mean()


def means(model: Any, step: int) -> list[Any]:
    loss = sum(compute(model, step, rank) for rank in range(hvd.size())) / hvd.size()
    return list(torch.autograd.grad(loss, list(model.parameters())))


FOLLOW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "groups": ({"groups": 2}, {}),
    "both in groups": ({"groups": 2}, {"groups": 3}),
    "both compressed": (
        {"compression": hvd.Compression.bf16},
        {"compression": hvd.Compression.bf16},
    ),
}


@pytest.mark.parametrize("options", FOLLOW)
def test_gradients_that_two_optimizers_reduce_are_their_mean(options: str) -> None:
    """The average of an average is the average, and all ranks have the same bits."""
    model = layers()
    one, other = pair_over(model, *FOLLOW[options])
    close = {"rtol": 1e-9, "atol": 1e-12} if "compressed" not in options else {"rtol": 0.1}
    close.setdefault("atol", 1e-2)
    for step in range(STEPS):
        expected = means(model, step)
        one.zero_grad()
        compute(model, step, hvd.rank()).backward()
        other.synchronize()
        one.step()
        for parameter, mean in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, mean, **close)
            every = hvd.allgather(parameter.grad[None])
            assert all(each.equal(every[0]) for each in every)


def test_gradients_may_be_clipped_after_one_of_two_optimizers_has_synchronized() -> None:
    """Nothing of the other one is in flight on them any more."""
    model = layers()
    one, other = pair_over(model, {}, {})
    for step in range(STEPS):
        one.zero_grad()
        compute(model, step, hvd.rank()).backward()
        one.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with one.skip_synchronize():
            one.step()
        other.step()
        for parameter in model.parameters():
            every = hvd.allgather(parameter.grad[None])
            assert all(each.equal(every[0]) for each in every)


def test_sums_of_two_optimizers_follow_each_other() -> None:
    model = layers()
    one, other = pair_over(model, {"op": hvd.Sum}, {"op": hvd.Sum})
    for step in range(STEPS):
        expected = [hvd.size() * mean for mean in means(model, step)]
        one.zero_grad()
        compute(model, step, hvd.rank()).backward()
        one.synchronize()
        other.synchronize()
        for place, (parameter, total) in enumerate(zip(model.parameters(), expected, strict=True)):
            times = hvd.size() if place >= 2 else 1  # the second optimizer has these
            torch.testing.assert_close(parameter.grad, times * total)
        with one.skip_synchronize():
            one.step()
        with other.skip_synchronize():
            other.step()


@several_ranks
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"gradient_as_bucket_view": True}, {}),
        ({}, {"gradient_as_bucket_view": True}),
        ({"gradient_as_bucket_view": True}, {"gradient_as_bucket_view": True}),
        ({"compression": hvd.Compression.fp16}, {}),
        ({}, {"compression": hvd.Compression.fp16}),
        ({"op": hvd.Average}, {"compression": hvd.Compression.bf16, "groups": 1}),
        ({"op": hvd.Average}, {"op": hvd.Sum}),
    ],
)
def test_a_gradient_that_is_not_complete_is_refused_with_both_optimizers(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    model = layers()
    one, other = pair_over(model, first, second)
    with pytest.raises(ValueError, match=BOTH):
        compute(model, 0, hvd.rank()).backward()
    for optimizer in (one, other):  # drops what the backward pass began
        optimizer.load_state_dict(optimizer.state_dict())
    hvd.barrier()
    if "gradient_as_bucket_view" not in {**first, **second}:
        return
    for optimizer in (one, other):  # one after the other they are right
        model.zero_grad()
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.full_like(parameter, float(hvd.rank()))
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        for parameter in optimizer.param_groups[0]["params"]:
            assert (parameter.grad == (hvd.size() - 1) / 2).all()


@several_ranks
def test_the_error_of_too_many_backward_passes_names_the_optimizer_that_made_no_step() -> None:
    model = layers()
    one, other = pair_over(model, {}, {})
    compute(model, 0, hvd.rank()).backward()
    one.step()
    with pytest.raises(AssertionError, match=r"backward_passes_per_step.*the Adam of '.*second\."):
        compute(model, 1, hvd.rank()).backward()
    other.synchronize()
    one.load_state_dict(one.state_dict())
    hvd.barrier()


@several_ranks
@pytest.mark.parametrize("clash", ["names", "gradients"])
def test_optimizers_made_after_an_error_take_the_place_of_those_that_clashed(clash: str) -> None:
    """As in a notebook, where the error's traceback keeps both alive."""
    model = layers()
    prefix = name()

    def made(kind: str, **given: Any) -> Any:
        named = list(model.named_parameters(prefix=f"{prefix}.{kind}"))
        sgd = torch.optim.SGD([parameter for _, parameter in named], lr=0.0)
        return hvd.DistributedOptimizer(sgd, named, **given)

    if clash == "names":
        clashed = [made("one"), made("one")]
    else:
        clashed = [made("one"), made("other", gradient_as_bucket_view=True)]
    with pytest.raises(ValueError, match="reducing '") as caught:
        compute(model, 0, hvd.rank()).backward()
    hvd.barrier()  # all ranks have begun the same reductions, so these end
    again = made("one")
    for step in range(3):
        again.zero_grad()
        expected = means(model, step)
        compute(model, step, hvd.rank()).backward()
        again.step()
        for parameter, mean in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, mean)
    assert caught.tb is not None
    assert len(clashed) == 2
