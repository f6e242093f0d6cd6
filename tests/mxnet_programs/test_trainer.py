"""Operations on MXNet's arrays, and training by `gradred.mxnet.DistributedTrainer`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")
hvd = pytest.importorskip("gradred.mxnet")

import gradred  # noqa: E402 (MXNet comes first)

hvd.init()

STEPS, ROWS = 4, 6


def ranks_sum() -> int:
    return hvd.size() * (hvd.size() + 1) // 2


def model_of(seed: int = 1, hybrid: bool = False) -> Any:
    """A model in float64, the same on all ranks for one seed; its inputs are of 5 numbers."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(8, activation="tanh", in_units=5), mx.gluon.nn.Dense(3, in_units=8))
    net.initialize()
    net.cast("float64")
    made = np.random.default_rng(seed)
    for parameter in net.collect_params().values():
        parameter.set_data(mx.nd.array(made.standard_normal(parameter.shape) / 4, dtype="float64"))
    if hybrid:
        net.hybridize()
    return net


def batches(seed: int = 7) -> tuple[Any, Any]:
    """Inputs and targets, the same on all ranks: for each step, the rows of each rank."""
    made = np.random.default_rng(seed)
    shape = (STEPS, hvd.size(), ROWS)
    return made.standard_normal((*shape, 5)), made.standard_normal((*shape, 3))


def backward(net: Any, x: Any, y: Any) -> None:
    with mx.autograd.record():
        error = net(mx.nd.array(x, dtype="float64")) - mx.nd.array(y, dtype="float64")
        loss = (error**2).sum()
    loss.backward()


def values(net: Any) -> list[Any]:
    return [one.data().asnumpy() for one in net.collect_params().values()]


def assert_close(found: Any, expected: Any) -> None:
    """Compare; MXNet's optimizers keep factors such as 1 / batch size in float32."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)


def trained_alone(name: str, options: dict[str, float]) -> list[Any]:
    """Parameters after training on all ranks' rows in one process."""
    net, (xs, ys) = model_of(), batches()
    trainer = mx.gluon.Trainer(net.collect_params(), name, options, kvstore=None)
    for x, y in zip(xs, ys, strict=True):
        backward(net, x.reshape(-1, 5), y.reshape(-1, 3))
        trainer.step(ROWS * hvd.size())
    return values(net)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [("sgd", {"learning_rate": 0.1, "momentum": 0.9}), ("adam", {"learning_rate": 0.01})],
)
def test_training_equals_that_on_the_joint_batch(
    name: str, options: dict[str, float], hybrid: bool
) -> None:
    net, (xs, ys) = model_of(hybrid=hybrid), batches()
    trainer = hvd.DistributedTrainer(net.collect_params(), name, options)
    for x, y in zip(xs, ys, strict=True):
        backward(net, x[hvd.rank()], y[hvd.rank()])
        trainer.step(ROWS)
    assert_close(values(net), trained_alone(name, options))


def test_gradients_can_be_clipped_between_reduction_and_update() -> None:
    net, (xs, ys) = model_of(), batches()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1}, op=hvd.Sum)
    before = values(net)
    backward(net, xs[0, hvd.rank()], ys[0, hvd.rank()])
    trainer.allreduce_grads()
    gradients = [one.grad() for one in net.collect_params().values()]
    joint = model_of()
    backward(joint, xs[0].reshape(-1, 5), ys[0].reshape(-1, 3))
    expected = [one.grad().asnumpy() for one in joint.collect_params().values()]
    assert_close([one.asnumpy() for one in gradients], expected)
    norm = np.sqrt(sum((one**2).sum().asscalar() for one in gradients))
    for one in gradients:
        one *= 0.5 / norm
    trainer.update(1)
    moved = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(values(net), before, strict=True)))
    assert moved == pytest.approx(0.5)


def test_a_parameter_without_a_gradient_on_one_rank_counts_as_zero_there() -> None:
    params = mx.gluon.ParameterDict()
    used, other = (params.get(name, shape=(3,), init="zeros") for name in ("used", "other"))
    params.initialize()
    trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1})
    for _ in range(2):  # in the second step the other ranks have the gradient of the first
        with mx.autograd.record():
            loss = used.data().sum()
            loss = loss + other.data().sum() if hvd.rank() == 0 else loss
        loss.backward()
        trainer.step(1)
    np.testing.assert_array_equal(used.data().asnumpy(), np.full(3, -2))
    np.testing.assert_allclose(other.data().asnumpy(), np.full(3, -2 / hvd.size()), rtol=1e-6)


def test_frozen_parameters_stay_as_they_are() -> None:
    net, (xs, ys) = model_of(), batches()
    net[0].collect_params().setattr("grad_req", "null")
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    backward(net, xs[0, hvd.rank()], ys[0, hvd.rank()])
    trainer.step(ROWS)
    assert_close(values(net)[:2], values(model_of())[:2])
    assert (values(net)[2] != values(model_of())[2]).all()


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "uint8", "int8", "int32", "int64"]
)
def test_allreduce_of_every_type(dtype: str) -> None:
    x = mx.nd.full((3, 2), hvd.rank() + 1, dtype=dtype)
    found = hvd.allreduce(x, op=hvd.Sum)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.asnumpy(), np.full((3, 2), ranks_sum()))
    np.testing.assert_array_equal(x.asnumpy(), np.full((3, 2), hvd.rank() + 1))
    assert hvd.allreduce_(x, op=hvd.Max) is x
    np.testing.assert_array_equal(x.asnumpy(), np.full((3, 2), hvd.size()))


def test_arrays_that_mxnet_still_computes_are_waited_for() -> None:
    x = mx.nd.ones((300, 300))
    for _ in range(30):  # returns before it has ended
        x = mx.nd.dot(x, x) / 300
    np.testing.assert_allclose(hvd.allreduce(x).asnumpy(), np.ones((300, 300)), rtol=1e-4)
    found = hvd.allreduce_(x * (hvd.rank() + 1), op=hvd.Sum) + 1
    np.testing.assert_allclose(found.asnumpy(), np.full((300, 300), ranks_sum() + 1), rtol=1e-4)


def test_gradients_of_convolutions_which_lie_in_another_order() -> None:
    net = mx.gluon.nn.Conv2D(16, 3, in_channels=16)
    net.initialize()
    hvd.broadcast_parameters(net.collect_params())
    before = values(net)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1})
    images = np.random.default_rng(1).standard_normal((hvd.size(), 2, 16, 8, 8))

    def compute(x: Any) -> list[Any]:
        with mx.autograd.record():
            loss = (net(mx.nd.array(x)) ** 2).sum()
        loss.backward()
        return [one.grad().asnumpy() for one in net.collect_params().values()]

    gradients = compute(images.reshape(-1, 16, 8, 8))
    compute(images[hvd.rank()])
    trainer.step(1)
    expected = [a - b / hvd.size() for a, b in zip(before, gradients, strict=True)]
    for one, other in zip(values(net), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_arrays_of_the_numpy_interface() -> None:
    found = hvd.allreduce(mx.np.array([1.0, 2.0]) * (hvd.rank() + 1), op=hvd.Sum)
    assert isinstance(found, mx.np.ndarray)
    assert found.tolist() == [ranks_sum(), 2 * ranks_sum()]


def test_parameters_of_one_rank_reach_all() -> None:
    net = model_of(seed=hvd.rank() + 1)
    hvd.broadcast_parameters(net.collect_params(), root_rank=hvd.size() - 1)
    assert_close(values(net), values(model_of(seed=hvd.size())))
    later = mx.gluon.nn.Dense(3)
    later.initialize()
    with pytest.raises(gradred.UsageError, match="has no value before the first batch"):
        hvd.broadcast_parameters(later.collect_params())


@pytest.mark.skipif(hvd.size() == 1, reason="takes several ranks")
def test_other_numbers_of_parameters_are_an_error() -> None:
    """The ranks would wait for those that others do not have."""
    arrays = {f"p{number}": mx.nd.zeros((2,)) for number in range(2 + (hvd.rank() == 0))}
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched tree structures") as caught:
        hvd.broadcast_parameters(arrays)
    assert all(f"has {count} parameters" in str(caught.value) for count in (2, 3))


def test_broadcast_and_objects() -> None:
    x = mx.nd.full((2,), hvd.rank())
    assert hvd.broadcast_(x, hvd.size() - 1) is x
    assert x.asnumpy().tolist() == [hvd.size() - 1] * 2
    assert hvd.allgather_object({"rank": hvd.rank()})[-1] == {"rank": hvd.size() - 1}


def test_what_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Pass mxnet\.nd\.array\(x\)"):
        hvd.allreduce(np.ones(3))
    with pytest.raises(gradred.UsageError, match="the array is sparse"):
        hvd.allreduce_(mx.nd.ones((3, 2)).tostype("row_sparse"))
    with pytest.raises(ValueError, match="Use Average or Sum"):
        hvd.DistributedTrainer(model_of().collect_params(), "sgd", op=hvd.Max)


def test_ranks_that_differ_get_an_error() -> None:
    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
        hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), "differs")
    assert hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum).asscalar() == hvd.size()
