"""Training by `gradred.paddle.DistributedOptimizer` equals training on the ranks' joint batch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from paddle_programs.given import (
    ROWS,
    STEPS,
    assert_close,
    batches,
    hvd,
    loss_of,
    model_of,
    paddle,
    values,
)

import gradred

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p: paddle.optimizer.SGD(0.1, p),
    "Momentum": lambda p: paddle.optimizer.Momentum(0.05, parameters=p),
    "Adam": lambda p: paddle.optimizer.Adam(0.01, parameters=p),
    "AdamW, clipped": lambda p: paddle.optimizer.AdamW(
        0.01, parameters=p, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.1)
    ),
    "groups": lambda p: paddle.optimizer.Adam(
        0.01, parameters=[{"params": p[:2], "learning_rate": 0.1}, {"params": p[2:]}]
    ),
}


def trained_alone(make: Callable[..., Any], passes: int = 1) -> list[Any]:
    """Parameters after training on all ranks' rows in one process."""
    model, (xs, ys) = model_of(), batches()
    optimizer = make(model.parameters())
    for step in range(0, STEPS, passes):
        for x, y in zip(xs[step : step + passes], ys[step : step + passes], strict=True):
            loss_of(model, x.reshape(-1, 5), y.reshape(-1, 3)).backward()
        optimizer.step()
        optimizer.clear_grad()
    return values(model)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("call", ["step", "minimize"])
def test_training_equals_that_on_the_joint_batch(name: str, call: str) -> None:
    if (name, call) == ("groups", "minimize"):
        pytest.skip("PaddlePaddle's minimize takes no groups")
    model, (xs, ys) = model_of(), batches()
    optimizer = OPTIMIZERS[name](model.parameters())
    own = type(optimizer)
    wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    assert wrapped is optimizer
    assert isinstance(wrapped, own)
    assert type(wrapped).__name__ == own.__name__
    for x, y in zip(xs, ys, strict=True):
        loss = loss_of(model, x[hvd.rank()], y[hvd.rank()])
        loss.backward()
        wrapped.step() if call == "step" else wrapped.minimize(loss)
        wrapped.clear_grad()
    assert_close(values(model), trained_alone(OPTIMIZERS[name]))


def test_several_backward_passes_are_one_reduction_of_their_sum() -> None:
    model, (xs, ys) = model_of(), batches()
    optimizer = OPTIMIZERS["Adam"](model.parameters())
    hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    for step, (x, y) in enumerate(zip(xs, ys, strict=True)):
        loss_of(model, x[hvd.rank()], y[hvd.rank()]).backward()
        if step % 2:
            optimizer.step()
            optimizer.clear_grad(set_to_zero=step % 4 == 1)
    assert_close(values(model), trained_alone(OPTIMIZERS["Adam"], passes=2))


def test_synchronize_gives_the_reduced_gradients_to_the_program() -> None:
    model, (xs, ys) = model_of(), batches()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["SGD"](model.parameters()), op=hvd.Sum)
    loss_of(model, xs[0, hvd.rank()], ys[0, hvd.rank()]).backward()
    optimizer.synchronize()
    joint = model_of()
    (loss_of(joint, xs[0].reshape(-1, 5), ys[0].reshape(-1, 3)) * hvd.size()).backward()
    expected = [one.grad.numpy() for one in joint.parameters()]
    assert_close([one.grad.numpy() for one in model.parameters()], expected)
    optimizer.step()  # reduces nothing: the gradients stay as they are
    assert_close([one.grad.numpy() for one in model.parameters()], expected)


def test_a_parameter_without_a_gradient_on_one_rank_counts_as_zero_there() -> None:
    used, other = (paddle.create_parameter([3], "float64") for _ in range(2))
    for one in (used, other):
        one.set_value(np.zeros(3))
    optimizer = hvd.DistributedOptimizer(paddle.optimizer.SGD(1.0, [used, other]))
    loss = used.sum() + (other.sum() if hvd.rank() == 0 else 0)
    loss.backward()
    optimizer.step()
    np.testing.assert_array_equal(used.numpy(), -np.ones(3))
    np.testing.assert_array_equal(other.numpy(), -np.ones(3) / hvd.size())


def test_a_parameter_that_is_unfrozen_later_is_reduced_too() -> None:
    one = paddle.create_parameter([2], "float64")
    one.set_value(np.zeros(2))
    one.stop_gradient = True
    optimizer = hvd.DistributedOptimizer(paddle.optimizer.SGD(1.0, [one]))
    optimizer.step()
    one.stop_gradient = False
    (one.sum() * (hvd.rank() + 1.0)).backward()
    optimizer.step()
    np.testing.assert_array_equal(one.numpy(), -np.full(2, (hvd.size() + 1) / 2))


def test_gradients_in_another_order_of_axes() -> None:
    one = paddle.create_parameter([2, 3], "float64")
    one.set_value(np.zeros((2, 3)))
    optimizer = hvd.DistributedOptimizer(paddle.optimizer.SGD(1.0, [one]))
    weights = np.arange(6.0).reshape(3, 2)
    if hvd.rank() == 0:  # only this rank's gradient is transposed in memory
        (one.t() * paddle.to_tensor(weights)).sum().backward()
    else:
        (one * paddle.to_tensor(weights.T.copy())).sum().backward()
    optimizer.step()
    np.testing.assert_array_equal(one.numpy(), -weights.T)


def test_reductions_start_during_the_backward_pass() -> None:
    model, (xs, ys) = model_of(), batches()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["SGD"](model.parameters()))
    loss_of(model, xs[0, hvd.rank()], ys[0, hvd.rank()]).backward()
    started = len(optimizer._gradred_reduction._handles)
    assert started == (len(model.parameters()) if hvd.size() > 1 else 0)
    if started:
        with pytest.raises(gradred.UsageError, match=r"Call optimizer\.step\(\)"):
            optimizer.clear_grad()
    optimizer.step()
    optimizer.clear_grad()


def test_one_backward_pass_too_many_is_an_error() -> None:
    model, (xs, ys) = model_of(), batches()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["SGD"](model.parameters()))
    loss_of(model, xs[0, 0], ys[0, 0]).backward()
    loss_of(model, xs[0, 0], ys[0, 0]).backward()
    if hvd.size() > 1:
        with pytest.raises(gradred.UsageError, match="raise backward_passes_per_step"):
            optimizer.step()
    optimizer.step()


def test_model_compiled_to_a_static_graph_is_trained_alike() -> None:
    model, (xs, ys) = model_of(), batches()
    compiled = paddle.jit.to_static(model)
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["SGD"](model.parameters()))
    for x, y in zip(xs, ys, strict=True):
        loss_of(compiled, x[hvd.rank()], y[hvd.rank()]).backward()
        optimizer.step()
        optimizer.clear_grad()
    assert_close(values(model), trained_alone(OPTIMIZERS["SGD"]))


def test_two_optimizers_of_unnamed_parameters_do_not_meet() -> None:
    models = [model_of(seed) for seed in (1, 2)]
    optimizers = [hvd.DistributedOptimizer(OPTIMIZERS["SGD"](one.parameters())) for one in models]
    xs, ys = batches()
    for model in models:
        loss_of(model, xs[0, hvd.rank()], ys[0, hvd.rank()]).backward()
    for optimizer in optimizers:
        optimizer.step()
    alone = model_of(2)
    plain = OPTIMIZERS["SGD"](alone.parameters())
    loss_of(alone, xs[0].reshape(-1, 5), ys[0].reshape(-1, 3)).backward()
    plain.step()
    assert_close(values(models[1]), values(alone))


def test_wrapping_again_replaces_the_arguments() -> None:
    one = paddle.create_parameter([1], "float64")
    one.set_value(np.zeros(1))
    optimizer = hvd.DistributedOptimizer(paddle.optimizer.SGD(1.0, [one]))
    assert hvd.DistributedOptimizer(optimizer, op=hvd.Sum) is optimizer
    one.sum().backward()
    optimizer.step()
    assert one.numpy()[0] == -hvd.size()


def test_hooks_do_not_keep_the_optimizer_alive() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["SGD"](model.parameters()))
    reference = weakref.ref(optimizer._gradred_reduction)
    del optimizer
    gc.collect()
    assert reference() is None
    loss_of(model, np.zeros((ROWS, 5)), np.zeros((ROWS, 3))).backward()  # no error


def test_sparse_gradients_are_refused() -> None:
    table = paddle.nn.Embedding(10, 3, sparse=True)
    optimizer = hvd.DistributedOptimizer(paddle.optimizer.SGD(0.1, table.parameters()))
    table(paddle.to_tensor([1, 2])).sum().backward()
    if hvd.size() > 1:
        with pytest.raises(ValueError, match=r"as is the gradient of Embedding\(sparse=True\)"):
            optimizer.step()


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"backward_passes_per_step": 0}, "Pass 1 or more"),
        ({"op": hvd.Max}, "Use Average or Sum"),
        ({"named_parameters": []}, "Name all parameters"),
    ],
)
def test_wrong_arguments_are_refused(how: dict[str, Any], text: str) -> None:
    optimizer = OPTIMIZERS["SGD"](model_of().parameters())
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(optimizer, **how)


def test_parameters_and_state_of_one_rank_reach_all() -> None:
    model = model_of(seed=hvd.rank() + 1)
    optimizer = OPTIMIZERS["Adam"](model.parameters())
    for _ in range(hvd.rank() + 1):
        loss_of(model, np.ones((ROWS, 5)), np.ones((ROWS, 3))).backward()
        optimizer.step()
        optimizer.clear_grad()
    optimizer.set_lr(0.5 + hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    expected = hvd.broadcast_object([*values(model), *map(float, state_of(optimizer))], 0)
    assert_close([*values(model), *map(float, state_of(optimizer))], expected)
    loss_of(model, np.ones((ROWS, 5)), np.ones((ROWS, 3))).backward()
    optimizer.step()
    assert_close(values(model), hvd.broadcast_object(values(model), 0))


def test_threads_that_broadcast_the_same_names_follow_each_other() -> None:
    given = [{"w": paddle.full((2,), float(hvd.rank()))} for _ in range(16)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(hvd.broadcast_parameters, given))
    assert all(one["w"].tolist() == [0.0, 0.0] for one in given)


def state_of(optimizer: Any) -> list[float]:
    """The sums of the tensors of an optimizer's state, in the order of their names."""
    state = optimizer.state_dict()
    found = [state[key] for key in sorted(state)]
    return [float(one.sum()) for one in found if isinstance(one, paddle.Tensor)]
