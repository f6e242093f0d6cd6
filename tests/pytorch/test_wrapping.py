"""`DistributedOptimizer` keeps everything of the optimizer that it gets."""

from __future__ import annotations

import copy
import gc
import pickle
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from pytorch.given import RANKS, batches, hvd, model_of, name, torch

pytestmark = pytest.mark.usefixtures("initialised")

several_ranks = pytest.mark.skipif(RANKS == 1, reason="takes several ranks")


def loss_of(model: Any, inputs: Any) -> Any:
    """The loss of one process on several ranks' inputs, or of one rank on its own."""
    return sum(model(x).square().mean() for x in inputs) / len(inputs)


def train(optimizer: Any, model: Any, data: Any, passes: int = 1) -> None:
    for inputs in data:
        optimizer.zero_grad()
        for _ in range(passes):
            loss_of(model, inputs).backward()
        optimizer.step()


def require_training_of_one_process(
    optimizer: Any, model: Any, alone: Any, model_alone: Any, passes: int = 1
) -> None:
    """Train both on the same data, and compare; the models were equal."""
    data = batches(3)[:, 0]  # first axes: steps and ranks
    train(optimizer, model, data[:, hvd.rank() : hvd.rank() + 1], passes)
    train(alone, model_alone, data, passes)
    for found, expected in zip(model.parameters(), model_alone.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "groups": {"groups": 2},
    "buckets": {"gradient_as_bucket_view": True},
    "two passes": {"backward_passes_per_step": 2},
}


def adagrad(parameters: Any) -> Any:
    """An optimizer whose constructor makes its state."""
    return torch.optim.Adagrad(parameters, lr=0.1, initial_accumulator_value=0.1)


@pytest.mark.parametrize("options", OPTIONS)
def test_state_that_the_constructor_made_is_kept(options: str) -> None:
    given = OPTIONS[options]
    model, model_alone = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(adagrad(model.parameters()), **given)
    passes = given.get("backward_passes_per_step", 1)
    alone = adagrad(model_alone.parameters())
    require_training_of_one_process(optimizer, model, alone, model_alone, passes)


@pytest.mark.parametrize("options", OPTIONS)
def test_state_that_was_loaded_before_is_kept(options: str) -> None:
    given = OPTIONS[options]
    model_alone = model_of()
    alone = torch.optim.SGD(model_alone.parameters(), lr=0.1, momentum=0.9)
    train(alone, model_alone, batches(2)[:, 0])
    model = copy.deepcopy(model_alone)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    sgd.load_state_dict(copy.deepcopy(alone.state_dict()))
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), **given)
    passes = given.get("backward_passes_per_step", 1)
    require_training_of_one_process(optimizer, model, alone, model_alone, passes)


@pytest.mark.skipif(RANKS & (RANKS - 1) != 0, reason="takes 1, 2, 4, ... ranks")
def test_state_is_kept_with_adasum() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    inner = adagrad([parameter])
    state = inner.state[parameter]
    optimizer = hvd.DistributedOptimizer(inner, op=hvd.Adasum)
    parameter.sum().backward()
    optimizer.step()
    assert optimizer.state[parameter] is state
    assert state["sum"].tolist() == pytest.approx([1.1] * 4)
    # Equal steps of all ranks are averaged.
    assert parameter.tolist() == pytest.approx([1 - 0.1 / 1.1**0.5] * 4)


@several_ranks
def test_state_is_kept_in_and_outside_of_a_process_set() -> None:
    first = hvd.add_process_set([0])
    try:
        parameter = torch.nn.Parameter(torch.ones(4))
        optimizer = hvd.DistributedOptimizer(adagrad([parameter]), process_set=first)
        parameter.sum().backward()
        optimizer.step()
        assert optimizer.state[parameter]["sum"].tolist() == pytest.approx([1.1] * 4)
    finally:
        hvd.remove_process_set(first)


def test_the_object_stays_the_same() -> None:
    sgd = torch.optim.SGD(model_of().parameters(), lr=0.1)
    sgd.note = "kept"
    optimizer = hvd.DistributedOptimizer(sgd)
    assert optimizer is sgd
    assert optimizer.note == "kept"
    assert isinstance(optimizer, torch.optim.SGD)
    assert isinstance(optimizer, type(sgd))
    assert type(optimizer).__name__ == "SGD"
    assert type(optimizer).__module__ == hvd.DistributedOptimizer.__module__
    assert str(optimizer).startswith("SGD (")


class Own(torch.optim.Optimizer):  # type: ignore[misc, name-defined]
    """It has another constructor, other method arguments, and names that a wrapper might use."""

    count = 0

    def __init__(self, model: Any, *, rate: float) -> None:
        super().__init__(model.parameters(), {})
        self.rate = rate
        self._handles = self._hooks = self._groups = "its own"

    def _start(self) -> float:
        assert self._handles == self._hooks == self._groups == "its own"
        return self.rate

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, *, factor: float = 1.0) -> int:
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= self._start() * factor * parameter.grad
        return self.count


def test_optimizers_of_any_class_are_wrapped() -> None:
    model, model_alone = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(Own(model, rate=0.2))
    alone = Own(model_alone, rate=0.2)
    require_training_of_one_process(optimizer, model, alone, model_alone)
    data = batches(1)[0, 0]
    loss_of(model, data[hvd.rank() : hvd.rank() + 1]).backward()
    loss_of(model_alone, data).backward()
    assert optimizer.step(factor=0.0) == alone.step(factor=0.0) == 4
    for found, expected in zip(model.parameters(), model_alone.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


class Muonlike(torch.optim.SGD):  # type: ignore[misc, name-defined]
    """Its constructor refuses groups that it has changed itself."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        assert "scale" not in self.param_groups[0]
        self.param_groups[0]["scale"] = lr


def test_the_constructor_does_not_run_again() -> None:
    optimizer = hvd.DistributedOptimizer(Muonlike(model_of().parameters(), lr=0.5))
    assert optimizer.param_groups[0]["scale"] == 0.5


def runs_step_hooks() -> bool:
    """Whether hooks run.

    PyTorch up to 2.1 runs none once it has compiled anything in this process.
    """
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    seen: list[Any] = []
    sgd.register_step_pre_hook(lambda *_: seen.append(None))
    sgd.step()
    return bool(seen)


@pytest.mark.parametrize("before", [False, True])
def test_hooks_run_once_and_see_reduced_gradients(before: bool) -> None:
    if not runs_step_hooks():
        pytest.skip("this PyTorch runs no hooks of optimizers any more")
    parameter = torch.nn.Parameter(torch.zeros(2))
    sgd = torch.optim.SGD([parameter], lr=1.0, momentum=0.5)
    seen: list[Any] = []

    def register(optimizer: Any) -> None:
        optimizer.register_step_pre_hook(
            lambda one, *_: seen.append((one is optimizer, parameter.grad.tolist()))  # type: ignore[union-attr]
        )
        optimizer.register_step_post_hook(lambda *_: seen.append(parameter.tolist()))
        if hasattr(optimizer, "register_state_dict_post_hook"):  # PyTorch 2.3 and later
            optimizer.register_state_dict_post_hook(lambda _, state: {**state, "note": "kept"})

    if before:
        register(sgd)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum)
    if not before:
        register(optimizer)
    optimizer.load_state_dict({key: sgd.state_dict()[key] for key in ("state", "param_groups")})
    parameter.sum().backward()
    optimizer.step()
    size = float(hvd.size())
    assert seen == [(True, [size] * 2), [-size] * 2]
    if hasattr(optimizer, "register_state_dict_post_hook"):
        assert optimizer.state_dict()["note"] == "kept"


@pytest.mark.parametrize("before", [False, True])
def test_scheduler_changes_the_rate_whether_it_was_made_before_or_after(before: bool) -> None:
    model, model_alone = model_of(), model_of()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scheduler that sees no optimizer.step() warns
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        alone = torch.optim.SGD(model_alone.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR
        one = schedule(optimizer, 1) if before else None
        optimizer = hvd.DistributedOptimizer(optimizer)
        one, another = one or schedule(optimizer, 1), schedule(alone, 1)
        for _ in range(3):
            require_training_of_one_process(optimizer, model, alone, model_alone)
            one.step()
            another.step()
            assert optimizer.param_groups[0]["lr"] == alone.param_groups[0]["lr"]


@pytest.mark.parametrize("bound", [False, True])
def test_step_that_was_set_on_the_object_is_made(bound: bool) -> None:
    model, model_alone = model_of(), model_of()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    made: list[int] = []
    plain = sgd.step

    def step(*_: Any) -> None:
        made.append(len(made))
        plain()

    sgd.step = types.MethodType(step, sgd) if bound else step
    optimizer = hvd.DistributedOptimizer(sgd)
    if bound:
        torch.optim.lr_scheduler.StepLR(optimizer, 100)
    alone = torch.optim.SGD(model_alone.parameters(), lr=0.1)
    require_training_of_one_process(optimizer, model, alone, model_alone)
    assert made == [0, 1, 2]


def test_optimizer_with_a_scheduler_lives_as_long_as_it_is_used() -> None:
    optimizer = torch.optim.SGD(model_of().parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer = hvd.DistributedOptimizer(optimizer)
    alive = weakref.ref(optimizer)
    gc.collect()
    gc.disable()
    try:
        del optimizer, scheduler
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("scheduled", [False, True])
def test_to_wrap_it_again_replaces_the_arguments(scheduled: bool) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    sgd = torch.optim.SGD([parameter], lr=1.0)
    for turn in range(3):
        optimizer = hvd.DistributedOptimizer(sgd, [(f"again.{turn}", parameter)], op=hvd.Sum)
        if scheduled:
            torch.optim.lr_scheduler.StepLR(optimizer, 100)
        optimizer.zero_grad()
        parameter.sum().backward()
        optimizer.step()
        assert parameter.tolist() == [-(turn + 1.0) * hvd.size()] * 2


def test_arguments_that_do_not_fit_leave_the_optimizer_as_it_was() -> None:
    sgd = torch.optim.SGD(model_of().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="has no name"):
        hvd.DistributedOptimizer(sgd, [])
    assert type(sgd) is torch.optim.SGD


def test_copy_keeps_the_state() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(adagrad(model.parameters()))
    other, copied = copy.deepcopy((model, optimizer))
    model_alone = model_of()
    alone = adagrad(model_alone.parameters())
    require_training_of_one_process(copied, other, alone, model_alone)
    for found, expected in zip(model.parameters(), model_of().parameters(), strict=True):
        assert found.equal(expected)


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy])
def test_pickle_says_to_save_the_state(way: Callable[[Any], Any]) -> None:
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model_of().parameters(), lr=0.1))
    with pytest.raises(pickle.PicklingError, match=r"Save optimizer.state_dict\(\)"):
        way(optimizer)


def test_state_goes_through_a_file(tmp_path: Any) -> None:
    model, other = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    train(optimizer, model, batches(2)[:, 0, hvd.rank() : hvd.rank() + 1])
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    again = torch.optim.Adam(other.parameters())
    again.load_state_dict(torch.load(tmp_path / "state.pt"))
    other.load_state_dict(model.state_dict())
    again = hvd.DistributedOptimizer(again)
    for one, its_model in ((optimizer, model), (again, other)):
        train(one, its_model, batches(3)[2:, 0, hvd.rank() : hvd.rank() + 1])
    for found, expected in zip(other.parameters(), model.parameters(), strict=True):
        assert found.equal(expected)


class TakesTheLoss(torch.optim.SGD):  # type: ignore[misc, name-defined]
    """Its step has another first argument than a closure."""

    def step(self, loss: Any, scale: float = 1.0) -> float:
        super().step()
        return float(loss) * scale


def test_first_argument_of_step_may_be_something_else_than_a_closure() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    named = [(name(), parameter)]
    own = TakesTheLoss([parameter], lr=1.0)
    optimizer = hvd.DistributedOptimizer(own, named, op=hvd.Sum)
    loss = (parameter + 2.0).sum()
    loss.backward()
    assert optimizer.step(loss.detach()) == 6.0
    assert parameter.tolist() == [-hvd.size()] * 3
    assert optimizer.step(5, 2.0) == 10.0
