"""Gradients through operations, and the tape that reduces gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tf.given import batches, hvd, keras, model_of, tf, total

pytestmark = pytest.mark.usefixtures("initialised")


@pytest.fixture(params=["eager", "graph"])
def gradient_of(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """The gradient of the sum of a function's result, weighted by this rank's number."""

    def gradient(function: Callable[[Any], Any], x: Any) -> Any:
        def compute(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(function(x) * float(hvd.rank() + 1))
            return tape.gradient(y, x)

        return (tf.function(compute) if request.param == "graph" else compute)(x).numpy()

    return gradient


def test_allreduce(gradient_of: Any) -> None:
    x = tf.ones([3])
    summed = gradient_of(lambda x: hvd.allreduce(x, op=hvd.Sum), x)
    assert summed.tolist() == [total()] * 3
    average = gradient_of(hvd.allreduce, x)
    np.testing.assert_allclose(average, [total() / hvd.size()] * 3, rtol=1e-6)
    scaled = gradient_of(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), x)
    assert scaled.tolist() == [total() / 2] * 3
    grouped = gradient_of(lambda x: tf.add_n(hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)), x)
    assert grouped.tolist() == [3 * total()] * 3


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product])
def test_operations_without_a_gradient_are_refused(gradient_of: Any, op: int) -> None:
    with pytest.raises(ValueError, match=r"(?s)there is none.*tf\.stop_gradient"):
        gradient_of(lambda x: hvd.allreduce(x, op=op), tf.ones([3]))
    cut = gradient_of(lambda x: x * tf.stop_gradient(hvd.allreduce(x, op=op)), tf.ones([3]))
    assert cut.tolist() == [hvd.rank() + 1.0] * 3


def test_allgather(gradient_of: Any) -> None:
    found = gradient_of(hvd.allgather, tf.ones([hvd.rank() + 1, 2]))
    assert found.shape == (hvd.rank() + 1, 2)
    np.testing.assert_allclose(found, np.full(found.shape, total() / hvd.size()), rtol=1e-6)


def test_broadcast(gradient_of: Any) -> None:
    found = gradient_of(lambda x: hvd.broadcast(x, 0), tf.ones([2]))
    expected = total() / hvd.size() if hvd.rank() == 0 else 0.0
    np.testing.assert_allclose(found, [expected] * 2, rtol=1e-6)


def test_alltoall(gradient_of: Any) -> None:
    splits = tf.range(hvd.size()) + 1
    rows = hvd.size() * (hvd.size() + 1) // 2
    found = gradient_of(lambda x: hvd.alltoall(x, splits)[0], tf.ones([rows, 2]))
    expected = [[rank + 1.0] * 2 for rank in range(hvd.size()) for _ in range(rank + 1)]
    assert found.tolist() == expected


def test_reducescatter(gradient_of: Any) -> None:
    x = tf.ones([hvd.size() + 1, 2])
    rows = [1, *range(1, hvd.size() + 1)]  # the rank, plus 1, to which each row goes
    summed = gradient_of(lambda x: hvd.reducescatter(x, op=hvd.Sum), x)
    assert summed.tolist() == [[float(rank * hvd.size())] * 2 for rank in rows]
    average = gradient_of(hvd.reducescatter, x)
    assert average.tolist() == [[float(rank)] * 2 for rank in rows]


# ---- the tape -----------------------------------------------------------------------------------


def reduced(variables: Any, loss: Callable[[], Any], traced: bool, **options: Any) -> Any:
    def compute() -> Any:
        with tf.GradientTape() as tape:
            made = loss()
        tape = hvd.DistributedGradientTape(tape, **options)
        return tape.gradient(made, variables)

    return (tf.function(compute) if traced else compute)()


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"op": 1},
        {"groups": 2},
        {"num_groups": 3},
        {"gradient_predivide_factor": 2.0},
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.wire("bf16")},
    ],
    ids=str,
)
def test_tape_reduces_gradients(traced: bool, options: dict[str, Any]) -> None:
    variables = [tf.Variable(tf.fill([n], 2.0)) for n in range(1, 8)]
    mine = float(hvd.rank() + 1)
    found = reduced(
        variables,
        lambda: tf.add_n([tf.reduce_sum(mine * x * x) for x in variables]),
        traced,
        **options,
    )
    factor = 1 if options.get("op") == 1 else hvd.size()
    for one, variable in zip(found, variables, strict=True):
        np.testing.assert_allclose(one, np.full(variable.shape, 4.0 * total() / factor), rtol=1e-3)


def test_tape_is_the_same_object_and_keeps_structures_and_missing_gradients() -> None:
    x, unused = tf.Variable(3.0), tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        y = x * float(hvd.rank())
    made = hvd.DistributedGradientTape(tape)
    assert made is tape
    assert isinstance(made, tf.GradientTape)
    found = made.gradient(y, {"x": x, "unused": unused})
    assert found["unused"] is None
    np.testing.assert_allclose(found["x"], (hvd.size() - 1) / 2, rtol=1e-6)


def test_groups_of_variables() -> None:
    variables = [tf.Variable(float(n)) for n in range(5)]
    found = reduced(
        variables,
        lambda: tf.add_n([x * float(hvd.rank() + 1) for x in variables]),
        False,
        groups=[[variables[3], variables[0]]],
        op=hvd.Sum,
    )
    assert [float(one) for one in found] == [total()] * 5
    with pytest.raises(ValueError, match="lists of variables"):
        hvd.DistributedGradientTape(tf.GradientTape(), groups=-1)
    with pytest.raises(ValueError, match="goes with Average"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients_of_an_embedding(as_dense: bool, factor: float) -> None:
    table = tf.Variable(tf.ones([6, 2]))
    rows = tf.constant([hvd.rank(), hvd.rank()])
    dense = tf.Variable([1.0])
    found, beside = reduced(
        [table, dense],
        lambda: tf.reduce_sum(tf.gather(table, rows)) * dense,
        True,
        sparse_as_dense=as_dense,
        gradient_predivide_factor=factor,
    )
    assert isinstance(found, tf.IndexedSlices) is not as_dense
    expected = np.zeros([6, 2])
    expected[: hvd.size()] = 2 / hvd.size()
    np.testing.assert_allclose(tf.convert_to_tensor(found), expected, rtol=1e-6)
    np.testing.assert_allclose(beside, [4.0], rtol=1e-6)


def test_local_sources_are_scaled_and_not_reduced() -> None:
    shared, local = tf.Variable(1.0), tf.Variable(1.0)
    mine = float(hvd.rank() + 1)
    for scales in (True, False):
        with tf.GradientTape() as tape:
            y = mine * shared + mine * local
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, scale_local_gradients=scales)
        tape.register_local_source(local)
        first, second = tape.gradient(y, [shared, local])
        assert float(first) == total()
        np.testing.assert_allclose(second, mine / (hvd.size() if scales else 1), rtol=1e-6)


def test_partial_tape_keeps_the_gradients_of_layers_local() -> None:
    model = model_of()
    inputs, _ = batches(1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(inputs[0, hvd.rank()]))
    with tf.GradientTape() as other:
        again = tf.reduce_sum(model(inputs[0, hvd.rank()]))
    own = other.gradient(again, model.trainable_variables)
    tape = hvd.PartialDistributedGradientTape(
        tape, local_layers=model.layers[0], scale_local_gradients=False
    )
    found = tape.gradient(loss, model.trainable_variables)
    for number, (one, mine) in enumerate(zip(found, own, strict=True)):
        expected = mine if number < 2 else hvd.allreduce(mine)
        np.testing.assert_allclose(one, expected)


def test_training_with_a_tape_equals_training_on_all_batches() -> None:
    inputs, targets = batches(5)
    model, alone = model_of(), model_of()
    optimizers = [keras.optimizers.SGD(0.1, 0.9) for _ in range(2)]

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizers[0].apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for x, y in zip(inputs, targets, strict=True):
        step(tf.constant(x[hvd.rank()]), tf.constant(y[hvd.rank()]))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(alone(x.reshape(-1, 6)) - y.reshape(-1, 3)))
        gradients = tape.gradient(loss, alone.trainable_variables)
        optimizers[1].apply_gradients(zip(gradients, alone.trainable_variables, strict=True))
    for one, other in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
