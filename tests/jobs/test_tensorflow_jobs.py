"""Jobs of the front end for TensorFlow: an example, ranks that end, stall limits."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow")

from bounds import within
from typed import typed

from gradred import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


def job(
    folder: pathlib.Path, program: str, *options: str, ranks: int = 2
) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "gradred", "run", *options, "-np", str(ranks)]
    return subprocess.run(
        [*command, sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "TMPDIR": str(folder)},
    )


def test_example_learns() -> None:
    pytest.importorskip("sklearn")
    command = [sys.executable, "-m", "gradred", "run", "--horovod", "-np", "2", sys.executable]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "horovod_keras.py")],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [float(right) for right in re.findall(r"([\d.]+) % of the test", done.stdout)]
    assert found[-1] > 85, done.stdout
    assert found[-1] > found[0]


KILLED = """
import os
import signal
import time
import tensorflow as tf
import gradred.tensorflow as hvd
hvd.init()

@tf.function
def step(x):
    return [hvd.allreduce(x, name=str(i)) for i in range(20)]

step(tf.ones(10))
begin = time.monotonic()
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    step(tf.ones(10))
except tf.errors.AbortedError as error:
    print(f"after {time.monotonic() - begin:.2f} s: {' '.join(error.message.split())}", flush=True)
"""


def test_killed_rank_is_an_error_on_the_other_within_seconds(tmp_path: pathlib.Path) -> None:
    done = job(tmp_path, KILLED)
    assert done.returncode == 128 + signal.SIGKILL
    found = re.search(r"after ([\d.]+) s: .*rank 1", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < within(3)


STALL = """
import pathlib
import time
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()

@tf.function
def alone(x):
    return hvd.allreduce(x, name="alone")

over = pathlib.Path(__file__).with_name("over")
hvd.allreduce(tf.ones(1), name="together")
begin = time.monotonic()
if hvd.rank() == 0:
    try:
        alone(tf.ones(1))
    except tf.errors.AbortedError as error:
        text = " ".join(error.message.split())
        print(f"after {time.monotonic() - begin:.2f} s: {text}", flush=True)
    over.touch()
while not over.exists():
    time.sleep(0.01)
"""


def test_stall_of_a_graph_ends_in_an_error_after_horovods_limit(tmp_path: pathlib.Path) -> None:
    limits = ["--stall-check-warning-time-seconds", "1"]
    limits += ["--stall-check-shutdown-time-seconds", "2"]
    done = job(tmp_path, STALL, "--horovod", *limits)
    found = re.search(r"after ([\d.]+) s: (.*)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert 1.9 < float(found[1]) < within(5)
    assert "'allreduce.alone', which has not been submitted by rank 1" in found[2]
    assert "allreduce.alone" in done.stderr, "the report after one second"


ELASTIC = """
import os
import signal
import numpy as np
import keras
import tensorflow as tf
import horovod.tensorflow.keras as hvd
hvd.init()
first_pid = os.getpid()
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
x, y = np.ones((16, 4), "f4"), np.ones((16, 1), "f4")
state = hvd.elastic.KerasState(model, epoch=0, batch=0)
born = hvd.rank()

class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if born == 1 and state.epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)

@hvd.elastic.run
def train(state):
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=1),
        Dies(),
    ]
    model.fit(x, y, batch_size=4, epochs=6 - state.epoch, verbose=0, callbacks=callbacks)
    print(f"rank {hvd.rank()} of {hvd.size()}: epoch {state.epoch}, "
          f"steps {int(model.optimizer.iterations.numpy())}", flush=True)

train(state)
"""


def test_keras_training_goes_on_without_a_rank_that_died(tmp_path: pathlib.Path) -> None:
    done = job(tmp_path, ELASTIC, "--horovod", ranks=3)
    for rank in (0, 1):
        assert f"rank {rank} of 2: epoch 6" in done.stdout, done.stdout + done.stderr


TYPED = """
import keras
import numpy as np
import gradred

def train(epochs):
    import gradred.keras as hvd
    hvd.init()
    x, y = np.full((8, 3), hvd.rank() + 1.0, "f4"), np.zeros((8, 1), "f4")
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.layers.Input((3,)), layer])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    model.fit(x, y, batch_size=4, epochs=epochs, verbose=0)
    return model.get_weights()[0].ravel().tolist()

found = gradred.run(train, (2,), np=4)
print(len(found), all(one == found[0] for one in found), found[0][0] < 1)
"""


def test_function_typed_into_a_python_trains_on_ranks() -> None:
    pytest.importorskip("cloudpickle")
    assert typed(TYPED).split() == ["4", "True", "True"]


KERAS_2 = """
import sys
import numpy as np
import tensorflow as tf
import tf_keras
import horovod.tensorflow.keras as hvd
hvd.init()
kinds = {"new": tf_keras.optimizers, "legacy": tf_keras.optimizers.legacy}
passes = int(sys.argv[2])

def new():  # Adam would also depend on `iterations`, which counts passes
    kind = kinds[sys.argv[1]]
    return kind.Adam(0.1) if passes == 1 else kind.SGD(0.05, momentum=0.9)

random = np.random.default_rng(3)
x, y = random.standard_normal((8, 2, 4, 3)).astype("f4"), random.standard_normal((8, 2, 4, 1))
start = random.standard_normal((3, 1)).astype("f4")

def trained(optimizer, x, y):
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(3,))])
    model.set_weights([start, np.zeros(1, "f4")])
    model.compile(optimizer, "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    data = tf.data.Dataset.from_tensor_slices((x.reshape(-1, 3), y.reshape(-1, 1)))
    model.fit(data.batch(x.shape[1]), verbose=0, callbacks=callbacks)
    return np.concatenate([one.ravel() for one in model.get_weights()])

mine = trained(
    hvd.DistributedOptimizer(
        new(), backward_passes_per_step=passes, average_aggregated_gradients=True
    ),
    x[:, hvd.rank()], y[:, hvd.rank()],
)
steps = 8 // passes
alone = trained(new(), x.reshape(steps, -1, 3), y.reshape(steps, -1, 1))
np.testing.assert_allclose(mine, alone, rtol=1e-4, atol=1e-5)
print("alike")
"""


@pytest.mark.parametrize("kind", ["new", "legacy"])
@pytest.mark.parametrize("passes", [1, 2])
def test_optimizers_of_keras_2(tmp_path: pathlib.Path, kind: str, passes: int) -> None:
    """On the joint batch of both ranks, Keras 2 alone ends with the same weights."""
    pytest.importorskip("tf_keras")
    program = tmp_path / "program.py"
    program.write_text(KERAS_2)
    command = [sys.executable, "-m", "gradred", "run", "--horovod", "-np", "2", sys.executable]
    environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [*command, str(program), kind, str(passes)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["alike"] * 2


WITHOUT_INIT = """
import keras
import numpy as np
import tensorflow as tf
import gradred.keras as hvd_keras
import gradred.tensorflow as hvd

net = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
x, variable = tf.ones([4, 2]), tf.Variable([1.0, 2.0])
plain = lambda: keras.optimizers.SGD(0.1)


def fit(*callbacks):
    net.compile(optimizer=plain(), loss="mse")
    net.fit(x, tf.ones([4, 1]), verbose=0, callbacks=callbacks)


calls = hvd_keras.callbacks
surfaces = {
    "optimizer": lambda: hvd_keras.DistributedOptimizer(plain()),
    "of tensorflow": lambda: hvd.DistributedOptimizer(plain()),
    "partial": lambda: hvd_keras.PartialDistributedOptimizer(plain(), local_layers=[]),
    "passes": lambda: hvd_keras.DistributedOptimizer(plain(), backward_passes_per_step=2),
    "groups": lambda: hvd_keras.DistributedOptimizer(plain(), groups=2),
    "a set": lambda: hvd_keras.DistributedOptimizer(plain(), process_set=hvd.ProcessSet([0])),
    "tape": lambda: hvd.DistributedGradientTape(tf.GradientTape()),
    "partial tape": lambda: hvd.PartialDistributedGradientTape(tf.GradientTape()),
    "batch norm": lambda: hvd.SyncBatchNormalization()(x, training=True),
    "variables": lambda: hvd.broadcast_variables([variable], 0),
    "broadcast_": lambda: hvd.broadcast_([variable], 0),
    "object": lambda: hvd.broadcast_object(1),
    "objects": lambda: hvd.allgather_object(1),
    "state": lambda: hvd.elastic.TensorFlowState([variable]).sync(),
    "keras state": lambda: hvd.elastic.TensorFlowKerasState(net, plain()).sync(),
    "broadcast callback": lambda: fit(calls.BroadcastGlobalVariablesCallback(0)),
    "metric callback": lambda: fit(calls.MetricAverageCallback()),
    "warm-up callback": lambda: fit(calls.LearningRateWarmupCallback(0.1, steps_per_epoch=1)),
    "allreduce": lambda: hvd.allreduce(x),
    "grouped": lambda: hvd.grouped_allreduce([x]),
    "graph": lambda: tf.function(lambda: hvd.allreduce(x))(),
    "allgather": lambda: hvd.allgather(x),
    "broadcast": lambda: hvd.broadcast(x, 0),
    "alltoall": lambda: hvd.alltoall(x),
    "reducescatter": lambda: hvd.reducescatter(x),
    "of values": lambda: hvd_keras.allreduce(np.ones(3)),
    "join": hvd.join,
    "barrier": hvd.barrier,
    "size_op": hvd.size_op,
    "rank_op": hvd.rank_op,
}
for name, call in surfaces.items():
    try:
        call()
    except (ValueError, tf.errors.OpError, hvd.HorovodInternalError) as error:
        text = str(error)
        is_clear = "has not been initialized" in text or "has not been registered" in text
        assert is_clear, (name, text)
    else:
        print("silent:", name)
"""


def run_alone(folder: pathlib.Path, program: str, **variables: str) -> None:
    """Run a program that prints only what is wrong, without a launcher."""
    path = folder / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | variables,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_a_forgotten_init_is_an_error_everywhere(tmp_path: pathlib.Path) -> None:
    """Ranks that reduce nothing would drift apart without a word."""
    run_alone(tmp_path, WITHOUT_INIT)


KERAS_2_WITHOUT_INIT = """
import tensorflow as tf
import tf_keras
import gradred.tensorflow as hvd
import gradred.keras as hvd_keras

kinds = {"new": tf_keras.optimizers, "legacy": tf_keras.optimizers.legacy}
for kind, optimizers in kinds.items():
    for wrap in (hvd.DistributedOptimizer, hvd_keras.DistributedOptimizer):
        for given in ({}, {"backward_passes_per_step": 2}, {"process_set": hvd.ProcessSet([0])}):
            try:
                wrap(optimizers.SGD(0.1), **given)
            except (ValueError, hvd.HorovodInternalError) as error:
                text = str(error)
                is_clear = "has not been initialized" in text or "has not been registered" in text
                assert is_clear, (kind, wrap, given, text)
            else:
                print("silent:", kind, wrap, given)
"""


def test_a_forgotten_init_is_an_error_with_keras_2(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tf_keras")
    run_alone(tmp_path, KERAS_2_WITHOUT_INIT, TF_USE_LEGACY_KERAS="1")
