"""`broadcast_optimizer_state`, for any state of the first rank's optimizer."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pytorch.given import RANKS, hvd, model_of, torch

pytestmark = pytest.mark.usefixtures("initialised")

ROOT = 0


def broadcast(optimizer: Any) -> Any:
    """Broadcast the optimizer's state. Returns it, and asserts that it is the same on all ranks."""
    hvd.broadcast_optimizer_state(optimizer, ROOT)
    state = optimizer.state_dict()
    every = hvd.allgather_object(state)
    assert all(str(one) == str(every[0]) for one in every)
    return state


def sgd_with_state(values: Any) -> Any:
    """An SGD of two parameters; on the root the first parameter has this state."""
    parameters = [torch.nn.Parameter(torch.full((3,), float(hvd.rank()))) for _ in range(2)]
    sgd = torch.optim.SGD(parameters, lr=0.1 + hvd.rank(), momentum=0.9)
    if hvd.rank() == ROOT:
        sgd.state[parameters[0]] = values
    return sgd


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        None,
        {"momentum_buffer": None},
        {"momentum_buffer": None, "sums": [torch.ones(2), (None, torch.ones(3))]},
        {"momentum_buffer": torch.arange(3.0), "step": 4, "inner": {"q": torch.ones(2, 2)}},
        {
            "no elements": torch.ones(0),
            "scalar": torch.ones(()),
        },
        {"sparse": torch.eye(3).to_sparse()},
    ],
    ids=str,
)
def test_state_of_any_kind_comes_to_all_ranks(values: Any, wrapped: bool) -> None:
    sgd = sgd_with_state(copy.deepcopy(values))
    state = broadcast(hvd.DistributedOptimizer(sgd) if wrapped else sgd)
    assert str(state["state"]) == str({0: values})
    assert state["param_groups"][0]["lr"] == 0.1


def test_step_goes_on_where_the_momentum_is_none() -> None:
    sgd = sgd_with_state({"momentum_buffer": None})
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum)
    broadcast(optimizer)
    parameter = optimizer.param_groups[0]["params"][0]
    parameter.sum().backward()
    optimizer.step()
    assert optimizer.state[parameter]["momentum_buffer"].tolist() == [hvd.size()] * 3


class KeepsMore(torch.optim.SGD):  # type: ignore[misc, name-defined]
    """Its state_dict has an additional part."""

    slow: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "slow": self.slow}

    def load_state_dict(self, state_dict: Any) -> None:
        self.slow = state_dict["slow"]
        super().load_state_dict(state_dict)


def test_parts_that_an_optimizer_adds_to_its_state_come_along() -> None:
    optimizer = KeepsMore(model_of().parameters(), lr=0.1)
    optimizer.slow = [torch.full((2,), float(hvd.rank() + 5)), hvd.rank()]
    assert str(broadcast(optimizer)["slow"]) == str([torch.full((2,), 5.0), 0])


def test_state_that_the_root_shares_with_another_optimizer_is_its_own_afterwards() -> None:
    model = model_of()
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for _ in range(2))
    model(torch.ones(1, 6, dtype=torch.float64)).sum().backward()
    first.step()
    second.load_state_dict(first.state_dict())  # PyTorch does not copy these
    broadcast(second)
    for parameter in model.parameters():
        one, other = (made.state[parameter]["momentum_buffer"] for made in (first, second))
        assert one.equal(other)
        assert one.data_ptr() != other.data_ptr()


def test_state_keeps_the_order_of_its_axes() -> None:
    images = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    parameter = torch.nn.Parameter(images)
    sgd = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    if hvd.rank() == ROOT:
        parameter.square().sum().backward()
        sgd.step()
    broadcast(sgd)
    momentum = sgd.state[parameter]["momentum_buffer"]
    assert momentum.stride() == parameter.stride()
    assert (momentum == 2).all()


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.1, weight_decay=0.5)


@pytest.mark.parametrize("wrap", [lambda o: o, lambda o: hvd.DistributedOptimizer(o)])
@pytest.mark.parametrize("make", [adam, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_without_a_state_gradients_are_zeros_and_no_step_is_made(
    make: Callable[[Any], Any], wrap: Callable[[Any], Any]
) -> None:
    frozen, free, begun = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
    frozen.requires_grad_(False)
    begun.grad = torch.full((3,), 2.0)
    optimizer = wrap(make([frozen, free, begun]))
    assert broadcast(optimizer)["state"] == {}
    assert frozen.grad is None
    assert free.grad is not None
    assert free.grad.tolist() == [0.0] * 3
    assert begun.grad.tolist() == [2.0] * 3
    assert all(one.tolist() == [1.0] * 3 for one in (frozen, free, begun))


def test_zeros_are_sparse_where_gradients_will_be() -> None:
    model = torch.nn.ModuleList([torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1)])
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    hvd.broadcast_optimizer_state(sgd, ROOT, model)
    assert [one.grad.is_sparse for one in model.parameters()] == [True, False, False]
    table = torch.nn.Embedding(4, 2, sparse=True)
    hvd.broadcast_optimizer_state(torch.optim.SparseAdam(table.parameters()), ROOT)
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
@pytest.mark.parametrize("form", ["dictionary", "pairs", "list"])
def test_parameters_of_other_names_are_an_error_with_both(form: str) -> None:
    """The ranks would wait for names that others do not have."""
    odd = "more" if hvd.rank() == 0 else "other"
    pairs = [("weight", torch.ones(2)), (odd, torch.ones(3))]
    tensors = [torch.ones(2)] * (2 + (hvd.rank() == 0))
    given = {"dictionary": dict(pairs), "pairs": pairs, "list": tensors}[form]
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched tree structures") as caught:
        hvd.broadcast_parameters(given, ROOT)
    for shown in {"list": ["param.1 ", "param.2"]}.get(form, ["more", "other"]):
        assert shown.strip() in str(caught.value)
    x = torch.full((2,), float(hvd.rank()))
    hvd.broadcast_parameters({"weight": x}, ROOT)
    assert x.tolist() == [0.0, 0.0]


def test_threads_that_broadcast_the_same_names_follow_each_other() -> None:
    """A name that is in flight twice would be an error on one rank, for which others wait."""
    given = [{"w": torch.full((2,), float(hvd.rank()))} for _ in range(16)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: hvd.broadcast_parameters(one, ROOT), given))
    assert all(one["w"].tolist() == [0.0, 0.0] for one in given)


@pytest.mark.skipif(RANKS == 1, reason="takes several ranks")
def test_threads_in_another_order_on_another_rank_get_an_error_on_all_ranks() -> None:
    order = ["a", "b"] if hvd.rank() == 0 else ["b", "a"]
    begun = []
    with ThreadPoolExecutor(2) as pool:
        for name in order:
            begun.append(pool.submit(hvd.broadcast_parameters, {name: torch.zeros(2)}, ROOT))
            time.sleep(0.2)  # so that it is the first one
    for one in begun:
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched tree structures") as caught:
            one.result()
        assert all(f"has tensors {name}" in str(caught.value) for name in "ab")
    x = torch.full((2,), float(hvd.rank()))
    hvd.broadcast_parameters({"weight": x}, ROOT)
    assert x.tolist() == [0.0, 0.0]
