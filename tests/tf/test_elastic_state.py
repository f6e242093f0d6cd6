"""States of an elastic training, and training functions that start again after a failure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tf.given import hvd, keras, model_of, tf, value

hvd_keras = pytest.importorskip("gradred.keras")

pytestmark = pytest.mark.usefixtures("initialised")


def test_variables_return_to_the_last_commit() -> None:
    variable = tf.Variable([float(hvd.rank())])
    state = hvd.elastic.TensorFlowState([variable], batch=hvd.rank())
    state.sync()
    assert variable.numpy().tolist() == [0.0]
    assert state.batch == 0
    variable.assign([5.0])
    state.batch = 7
    state.commit()
    variable.assign([6.0])
    state.batch = 8
    state.restore()
    assert variable.numpy().tolist() == [5.0]
    assert state.batch == 7
    mine = tf.Variable([0.0])
    other = hvd.elastic.TensorFlowState([mine], batch=0)
    other.take(state.saved())
    assert mine.numpy().tolist() == [5.0]
    assert other.batch == 7
    with pytest.raises(ValueError, match="other variables"):
        hvd.elastic.TensorFlowState([tf.Variable([0.0, 0.0])], batch=0).take(state.saved())


def test_state_of_a_model_has_the_optimizers() -> None:
    model = model_of(seed=hvd.rank())
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    state = hvd_keras.elastic.KerasState(model, epoch=0, batch=0)
    state.sync()
    before = model.get_weights()
    for one in before:
        np.testing.assert_array_equal(hvd_keras.broadcast(one, 0), one)
    callbacks = [
        hvd_keras.elastic.UpdateEpochStateCallback(state),
        hvd_keras.elastic.UpdateBatchStateCallback(state),
        hvd_keras.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    made = np.random.default_rng(0)
    inputs, targets = made.standard_normal((20, 6)), made.standard_normal((20, 3))
    model.fit(inputs, targets, batch_size=4, verbose=0, callbacks=callbacks, shuffle=False)
    assert (state.epoch, state.batch) == (1, 0)
    assert int(value(model.optimizer.iterations)) == 5
    state.restore()  # the commit after the fourth batch
    assert int(value(model.optimizer.iterations)) == 4
    assert state.batch == 3
    with pytest.raises(ValueError, match="not built"):
        hvd.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(1)]))


@pytest.mark.parametrize("how", ["restore", "sync"])
def test_sums_of_passes_begin_anew(how: str) -> None:
    """Else ranks that go on with another number of passes would wait for each other."""
    model = model_of()
    optimizer = hvd_keras.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2
    )
    model.compile(optimizer, "mse")
    state = hvd_keras.elastic.KerasState(model)
    state.save()
    gradients = [tf.ones_like(tf.convert_to_tensor(one)) for one in model.trainable_variables]
    before = model.get_weights()
    for _ in range(hvd.rank() % 2):
        optimizer.apply(gradients, model.trainable_variables)
    getattr(state, how)()
    optimizer.apply(gradients, model.trainable_variables)
    for one, same in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, same)
    optimizer.apply(gradients, model.trainable_variables)
    for one, same in zip(model.get_weights(), before, strict=True):
        np.testing.assert_allclose(one, same - 2.0)


def test_function_starts_again_after_ranks_have_differed() -> None:
    variable = tf.Variable(0.0)
    state = hvd.elastic.TensorFlowState([variable], tries=0)
    seen = []

    @hvd.elastic.run
    def train(state: Any) -> str:
        seen.append(float(variable))
        state.tries += 1
        state.commit()
        variable.assign_add(1.0)
        if state.tries == 1:
            hvd.barrier()
            hvd.shutdown()  # as if a rank had left
            hvd.init(process_sets="dynamic")
            raise tf.errors.UnknownError(None, None, "gradred: a rank has left")
        hvd.allreduce(variable)
        return "done"

    assert train(state) == "done"
    assert seen == [0.0, 0.0]
    hvd.init(process_sets="dynamic")


def test_other_errors_of_tensorflow_stay_what_they_are() -> None:
    state = hvd.elastic.TensorFlowState([tf.Variable(0.0)])

    @hvd.elastic.run
    def train(state: Any) -> None:
        raise tf.errors.UnknownError(None, None, "of another library")

    with pytest.raises(tf.errors.UnknownError, match="of another library"):
        train(state)
