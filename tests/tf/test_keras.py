"""`gradred.keras`: the optimizer, callbacks, saved models, batch normalisation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf.given import batches, hvd, keras, model_of, tf, total, value

hvd_keras = pytest.importorskip("gradred.keras")
passes_of = pytest.importorskip("gradred.tensorflow.local_passes").passes_of

pytestmark = pytest.mark.usefixtures("initialised")


def trained(model: Any, inputs: Any, targets: Any, **options: Any) -> Any:
    """The weights after one epoch, each step of which takes one batch of the arrays."""
    batch = inputs.shape[1]
    data = tf.data.Dataset.from_tensor_slices(
        (inputs.reshape(-1, 6), targets.reshape(-1, 3))
    ).batch(batch)
    model.fit(data, epochs=1, verbose=0, **options)
    return model.get_weights()


def together_and_alone(
    steps: int, make: Any, wrap: Any, compile_options: Any = None
) -> tuple[Any, Any, Any]:
    """Train on all ranks, and on one with the batches of all. Returns weights, and the model."""
    inputs, targets = batches(steps)
    model, alone = model_of(), model_of()
    options = {"loss": "mse", **(compile_options or {})}
    model.compile(wrap(make()), **options)
    alone.compile(make(), **options)
    mine = trained(model, inputs[:, hvd.rank()], targets[:, hvd.rank()])
    all_inputs = inputs.reshape(steps, -1, 6), targets.reshape(steps, -1, 3)
    return mine, trained(alone, *all_inputs), model


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "AdamW"])
@pytest.mark.parametrize("eagerly", [False, True])
def test_fit_equals_training_on_all_batches(name: str, eagerly: bool) -> None:
    kind = getattr(keras.optimizers, name)
    mine, alone, model = together_and_alone(
        4, lambda: kind(0.01), hvd_keras.DistributedOptimizer, {"run_eagerly": eagerly}
    )
    for one, other in zip(mine, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)
    assert isinstance(model.optimizer, kind)
    assert type(model.optimizer).__name__ == name


def test_optimizer_is_the_same_object_and_keeps_its_state() -> None:
    model = model_of()
    optimizer = keras.optimizers.Adam(0.02)
    optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(5)
    made = hvd_keras.DistributedOptimizer(optimizer)
    assert made is optimizer
    assert int(value(made.iterations)) == 5
    assert hvd_keras.DistributedOptimizer(made, op=hvd.Sum) is optimizer
    gradients = [tf.ones(one.shape, one.dtype) for one in model.trainable_variables]
    made.apply(gradients, model.trainable_variables)
    assert int(value(made.iterations)) == 6
    again = type(made).from_config(made.get_config())
    assert isinstance(again, keras.optimizers.Adam)
    assert again._gradred is made._gradred
    assert float(value(again.learning_rate)) == pytest.approx(0.02)
    own = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    assert passes_of(own).passes == 2


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match="not a Keras 3 optimizer"):
        hvd_keras.DistributedOptimizer(object())
    with pytest.raises(ValueError, match="Average or Sum"):
        hvd_keras.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Max)
    with pytest.raises(ValueError, match="1 or more"):
        hvd_keras.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=0)


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_passes_are_summed_before_a_step(averages: bool, traced: bool) -> None:
    variable = keras.Variable(np.zeros(3), dtype="float64")
    optimizer = hvd_keras.DistributedOptimizer(
        keras.optimizers.SGD(1.0),
        backward_passes_per_step=3,
        average_aggregated_gradients=averages,
        op=hvd.Sum,
    )
    optimizer.build([variable])

    def apply(x: Any) -> None:
        optimizer.apply([x], [variable])

    step = tf.function(apply) if traced else apply
    mine = float(hvd.rank() + 1)
    expected = 0.0
    for number in range(1, 7):
        step(tf.fill([3], tf.constant(mine * number, tf.float64)))
        if number % 3 == 0:
            expected -= total() * (3 * number - 3) / (3 if averages else 1)
        np.testing.assert_allclose(value(variable), np.full(3, expected))
    assert int(value(optimizer.iterations)) == 6


@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_gradients_are_clipped_after_they_are_summed_and_reduced(clip: str) -> None:
    made = np.random.default_rng(3).standard_normal((4, 3, hvd.size(), 2, 5))  # step, pass, rank
    mine, plain = ([keras.Variable(np.zeros(5)) for _ in range(2)] for _ in range(2))
    asked = {"learning_rate": 0.5, "momentum": 0.9, clip: 0.3}
    optimizer = hvd_keras.DistributedOptimizer(
        keras.optimizers.SGD(**asked), backward_passes_per_step=3, average_aggregated_gradients=True
    )
    alone = keras.optimizers.SGD(**asked)
    optimizer.build(mine)
    for step in made:
        for one in step:
            optimizer.apply([tf.constant(x, tf.float32) for x in one[hvd.rank()]], mine)
        alone.apply([tf.constant(x, tf.float32) for x in step.mean((0, 1))], plain)
        for variable, expected in zip(mine, plain, strict=True):
            np.testing.assert_allclose(value(variable), value(expected), rtol=0, atol=1e-6)


def test_optimizers_of_one_config_have_sums_of_their_own() -> None:
    one = hvd_keras.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, op=hvd.Sum
    )
    other = type(one).from_config(one.get_config())
    variables = [keras.Variable(np.zeros(2)) for _ in range(2)]
    for optimizer, variable in zip((one, other), variables, strict=True):
        optimizer.build([variable])
        optimizer.apply([tf.ones(2)], [variable])
    assert [value(variable).tolist() for variable in variables] == [[0.0, 0.0]] * 2
    other.apply([tf.ones(2)], [variables[1]])
    assert value(variables[0]).tolist() == [0.0, 0.0]
    assert value(variables[1]).tolist() == [-2.0 * hvd.size()] * 2


def test_local_variables_keep_their_gradients() -> None:
    shared, local = (keras.Variable(np.zeros(2), dtype="float64") for _ in range(2))
    optimizer = hvd_keras.DistributedOptimizer(
        keras.optimizers.SGD(1.0), op=hvd.Sum, scale_local_gradients=False
    )
    optimizer.register_local_var(local)
    optimizer.build([shared, local])
    mine = tf.fill([2], tf.constant(hvd.rank() + 1.0, tf.float64))
    optimizer.apply([mine, mine], [shared, local])
    assert value(shared).tolist() == [-total()] * 2
    assert value(local).tolist() == [-(hvd.rank() + 1)] * 2
    model = model_of()
    partial = hvd_keras.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), local_layers=[model.layers[0]]
    )
    assert len(partial._gradred._local) == 2


def test_embeddings_and_mixed_precision_learn_the_same_on_all_ranks() -> None:
    keras.utils.set_random_seed(3)
    layers = [
        keras.layers.Input((4,), dtype="int32"),
        keras.layers.Embedding(20, 8, dtype="mixed_float16"),
        keras.layers.Flatten(),
        keras.layers.Dense(1, dtype="mixed_float16"),
    ]
    model = keras.Sequential(layers)
    inner = hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.dtype_policy = keras.DTypePolicy("mixed_float16")
    model.compile(inner, "mse")
    outer = model.optimizer
    assert type(outer).__name__ == "LossScaleOptimizer"
    assert hasattr(outer, "_gradred"), "it reduces before it looks for infinite gradients"
    assert not hasattr(outer.inner_optimizer, "_gradred")
    made = np.random.default_rng(hvd.rank())
    x = made.integers(0, 20, (32, 4))
    y = made.standard_normal((32, 1))
    if hvd.rank() == 0:
        y[3] = np.inf  # this rank's gradients alone are infinite in that batch
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    weights = [value(one) for one in model.trainable_variables]
    for one in weights:
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(hvd.broadcast(one, 0), one)


def test_model_is_executed_without_xla(capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of()
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD()), "mse", jit_compile=True)
    assert not model.jit_compile
    assert ("executed without XLA" in capsys.readouterr().err) == (hvd.rank() == 0)
    other = model_of()
    other.compile("sgd", "mse", jit_compile=True)
    assert other.jit_compile, "models with other optimizers stay as they are"


# ---- callbacks ----------------------------------------------------------------------------------


def data(batches_: int = 4) -> Any:
    made = np.random.default_rng(hvd.rank())
    return made.standard_normal((8 * batches_, 6)), made.standard_normal((8 * batches_, 3))


def test_broadcast_callback_makes_ranks_start_alike() -> None:
    model = model_of(seed=hvd.rank())
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    model.fit(
        *data(),
        batch_size=8,
        verbose=0,
        callbacks=[hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    for variable in [*model.weights, *model.optimizer.variables]:
        one = value(variable)
        np.testing.assert_array_equal(hvd_keras.broadcast(one, 0), one)


def test_metrics_are_averaged() -> None:
    logs = {"loss": float(hvd.rank()), "accuracy": 2.0 * hvd.rank()}
    hvd_keras.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs["loss"] == pytest.approx((hvd.size() - 1) / 2)
    assert logs["accuracy"] == pytest.approx(hvd.size() - 1)
    model = model_of()
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    callbacks = [hvd_keras.callbacks.MetricAverageCallback()]
    history = model.fit(*data(), verbose=0, callbacks=callbacks).history
    assert len({float(one) for one in hvd.allgather(tf.constant(history["loss"]))}) == 1


def test_learning_rate_rises_and_falls() -> None:
    model = model_of()
    model.compile(keras.optimizers.SGD(0.5), "mse")
    seen: list[float] = []

    class Seen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(float(value(self.model.optimizer.learning_rate)))

    warm_up = hvd_keras.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=2)
    falls = hvd_keras.callbacks.LearningRateScheduleCallback(0.5, 0.1, start_epoch=3)
    history = model.fit(
        *data(), batch_size=8, epochs=4, verbose=0, callbacks=[warm_up, falls, Seen()]
    )
    expected = [0.5 / hvd.size() * (1 + (i + 1) / 8 * (hvd.size() - 1)) for i in range(8)]
    np.testing.assert_allclose(seen[:8], expected, rtol=1e-5)
    np.testing.assert_allclose(seen[8:], [0.5] * 4 + [0.05] * 4, rtol=1e-6)
    assert history.history["lr"][-1] == pytest.approx(0.05)
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), "mse")
    with pytest.warns(UserWarning, match="momentum_correction has no effect"):
        model.fit(*data(), verbose=0, callbacks=[falls])


def test_best_model_is_saved_by_rank_0_and_loads_distributed(tmp_path: Path) -> None:
    folder = Path(hvd.broadcast_object(str(tmp_path)))
    path = folder / "best.keras"
    model = model_of()
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    checkpoint = hvd_keras.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(path))
    model.fit(*data(), verbose=0, callbacks=[checkpoint])
    hvd.barrier()
    assert path.exists()
    loaded = hvd_keras.load_model(str(path))
    assert isinstance(loaded.optimizer, keras.optimizers.Adam)
    assert hasattr(loaded.optimizer, "_gradred")
    assert float(value(loaded.optimizer.learning_rate)) == pytest.approx(0.01)
    loaded.fit(*data(), verbose=0)
    for one in loaded.get_weights():
        np.testing.assert_array_equal(hvd_keras.broadcast(one, 0), one)
    plain = keras.models.load_model(str(path))
    assert type(plain.optimizer) is keras.optimizers.Adam
    hvd.barrier()


def test_functions_on_values() -> None:
    one = np.full((2, 2), hvd.rank() + 1.0)
    np.testing.assert_allclose(hvd_keras.allreduce(one, op=hvd.Sum), np.full((2, 2), total()))
    assert hvd_keras.allgather(one).shape == (2 * hvd.size(), 2)
    assert hvd_keras.broadcast(one, 0).numpy().tolist() == [[1.0, 1.0]] * 2
    assert hvd_keras.reducescatter(np.ones((hvd.size(), 3)), op=hvd.Sum).shape == (1, 3)
    with pytest.raises(AttributeError, match="BroadcastGlobalVariablesCallback"):
        hvd_keras.broadcast_global_variables(0)
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=float(hvd.rank() + 3))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(0))
        assert session.run(variable) == 3.0


# ---- batch normalisation ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 5), (4, 3, 3, 5)])
def test_batch_normalisation_over_all_ranks(shape: tuple[int, ...]) -> None:
    made = np.random.default_rng(1).standard_normal((hvd.size(), *shape)) * 3 + 100
    inputs = tf.constant(made[hvd.rank()], tf.float32)
    everything = tf.constant(made.reshape(-1, *shape[1:]), tf.float32)
    synced, plain = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    weights = tf.range(float(shape[-1]))
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = synced(inputs, training=True)
        loss = tf.reduce_sum(y * y * weights)
    with tf.GradientTape() as other:
        other.watch(everything)
        z = plain(everything, training=True)
        whole = tf.reduce_sum(z * z * weights)
    part = slice(hvd.rank() * shape[0], (hvd.rank() + 1) * shape[0])
    np.testing.assert_allclose(y, z[part], atol=1e-3)
    for one, same in zip(
        synced.non_trainable_variables, plain.non_trainable_variables, strict=True
    ):
        np.testing.assert_allclose(value(one), value(same), rtol=1e-4)
    found = tape.gradient(loss, inputs)
    expected = other.gradient(whole, everything)[part]
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_rank_without_examples_leaves_the_statistics_to_the_others() -> None:
    if hvd.size() == 1:
        pytest.skip("one rank alone")
    is_empty = hvd.rank() == hvd.size() - 1
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    x = tf.fill([0 if is_empty else 4, 3], float(hvd.rank()))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True)
        loss = tf.reduce_sum(y * y)
    mean = (hvd.size() - 2) / 2
    np.testing.assert_allclose(value(layer.moving_mean), [mean] * 3, atol=1e-6)
    assert np.isfinite(value(layer.moving_variance)).all()
    assert np.isfinite(tape.gradient(loss, x).numpy()).all()


def test_layer_traced_by_one_rank_alone_reduces_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an elastic job that begins with one rank."""
    layer = hvd.SyncBatchNormalization()
    with monkeypatch.context() as alone:
        for module in ("gradred.horovod.basics", "gradred.tensorflow.sync_batch_norm"):
            alone.setattr(f"{module}.size", lambda: 1, raising=False)
        traced = tf.function(lambda x: layer(x, training=True)).get_concrete_function(
            tf.TensorSpec([4, 3])
        )
    kinds = {one.type for one in traced.graph.get_operations()}
    assert "GradredReduce" in kinds


# ---- broadcasts and objects ---------------------------------------------------------------------


def test_variables_and_objects_are_broadcast() -> None:
    variables = [tf.Variable(tf.fill([n], hvd.rank())) for n in range(1, 30)]
    variables_of_keras = [keras.Variable(np.full(3, hvd.rank() + 1.0))]
    hvd.broadcast_variables([*variables, *variables_of_keras], root_rank=hvd.size() - 1)
    assert all((one.numpy() == hvd.size() - 1).all() for one in variables)
    assert value(variables_of_keras[0]).tolist() == [hvd.size()] * 3

    @tf.function
    def again() -> Any:
        return hvd.broadcast_([variables[0]], 0)

    variables[0].assign([hvd.rank() + 40])
    again()
    assert variables[0].numpy().tolist() == [40]
    assert hvd.broadcast_object({"rank": hvd.rank()}) == {"rank": 0}
    assert hvd.broadcast_object_fn(0)(os.getpid()) == hvd.allgather_object(os.getpid())[0]
