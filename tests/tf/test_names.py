"""Operations keep their partners where functions call functions, and ranks reach them in turn."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from tf.given import hvd, tf

from gradred.tensorflow import kernels

pytestmark = pytest.mark.usefixtures("initialised")

SECONDS = 0.2


def late(x: Any, is_late: bool) -> Any:
    """The tensor, after a while if `is_late`. TensorFlow executes several of these at a time."""

    def wait(value: Any) -> Any:
        time.sleep(SECONDS * is_late)
        return value

    made = tf.numpy_function(wait, [x], x.dtype, stateful=False)
    made.set_shape(x.shape)
    return made


def crossed(x: Any, y: Any) -> tuple[Any, Any]:
    """The tensors; x is late on rank 0, and y on the others."""
    return late(x, hvd.rank() == 0), late(y, hvd.rank() != 0)


@tf.function
def mean(x: Any) -> Any:
    return hvd.allreduce(tf.reduce_mean(x), op=hvd.Sum)


@tf.function
def named(x: Any) -> Any:
    return hvd.allreduce(tf.reduce_mean(x), op=hvd.Sum, name="mean of all")


def ones_and_tens() -> tuple[Any, Any]:
    return tf.ones(3), tf.fill([3], 10.0)


def floats(found: Any) -> list[float]:
    return [float(one) for one in found]


def test_function_and_its_caller_have_equal_tensors() -> None:
    @tf.function
    def both(x: Any, y: Any) -> Any:
        x, y = crossed(x, y)
        return hvd.allreduce(tf.reduce_mean(x), op=hvd.Sum), mean(y)

    for _ in range(3):
        assert floats(both(*ones_and_tens())) == [hvd.size(), 10.0 * hvd.size()]


@pytest.mark.parametrize("called", [mean, named])
def test_function_called_twice(called: Any) -> None:
    @tf.function
    def twice(x: Any, y: Any) -> Any:
        x, y = crossed(x, y)
        return called(x), called(y)

    for _ in range(3):
        assert floats(twice(*ones_and_tens())) == [hvd.size(), 10.0 * hvd.size()]


def test_gradients_of_a_function_called_twice() -> None:
    v = tf.Variable(2.0)

    @tf.function
    def inner(x: Any) -> Any:
        return hvd.allreduce(tf.reduce_mean(x) * v, op=hvd.Sum)

    @tf.function
    def gradient(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            x, y = crossed(x, y)
            loss = inner(x) * inner(y)
        return tape.gradient(loss, v)

    # Of (n v)(10 n v), on n ranks.
    assert float(gradient(*ones_and_tens())) == 40.0 * hvd.size() ** 2


def test_branches_and_loops_beside_functions() -> None:
    @tf.function
    def program(x: Any, y: Any, p: Any) -> Any:
        x, y = crossed(x, y)
        one = tf.cond(p, lambda: mean(x) + mean(y), lambda: mean(x))
        total = tf.constant(0.0)
        for i in tf.range(4):
            total += hvd.allreduce(y[0] * tf.cast(i, tf.float32), op=hvd.Sum)
        return one, total, mean(y)

    size = hvd.size()
    for p, one in ((True, 11.0), (False, 1.0)):
        expected = [one * size, 60.0 * size, 10.0 * size]
        assert floats(program(*ones_and_tens(), tf.constant(p))) == expected


def test_rank_with_more_branches_than_others() -> None:
    """TensorFlow counts branches over a whole graph; a rank may have one more, as for a print."""

    @tf.function
    def program(x: Any, p: Any) -> Any:
        if hvd.rank() == 0:
            x += tf.cond(p, lambda: tf.zeros(3) * tf.random.uniform([]), lambda: x)
        with tf.name_scope("shared"):
            return tf.cond(p, lambda: mean(x), lambda: mean(x) * 2.0)

    assert float(program(tf.ones(3), tf.constant(True))) == hvd.size()


@pytest.mark.parametrize("name", ["with a space", "_begins with one", "a/b/", "Größe"])
def test_any_name_is_taken(name: str) -> None:
    called = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name=name))
    assert float(called(tf.constant(1.0))) == hvd.size()


def test_names_in_messages_are_the_programs() -> None:
    if hvd.size() == 1:
        pytest.skip("one rank alone")

    @tf.function
    def inner(x: Any) -> Any:
        return hvd.allreduce(x, name="loss")

    @tf.function
    def outer(x: Any) -> Any:
        return inner(x)

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"'allreduce.*loss'.*Mismatched"):
        outer(tf.ones(2 + hvd.rank()))


def test_threads_that_broadcast_variables_follow_each_other() -> None:
    given = [[tf.Variable([float(hvd.rank())])] for _ in range(16)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: hvd.broadcast_variables(one, root_rank=0), given))
    assert [one[0].numpy().tolist() for one in given] == [[0.0]] * 16


def test_library_that_needs_more_than_this_tensorflow_has_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Library:
        gradred_tensorflow_use = gradred_tensorflow_waits = SimpleNamespace()

        @staticmethod
        def gradred_tensorflow_missing() -> bytes:
            return b"TF_Any"

    monkeypatch.setattr(kernels.ctypes, "CDLL", lambda _: Library)
    with pytest.raises(ImportError, match=r"lacks TF_Any\. Install TensorFlow 2\.16 or newer"):
        kernels._load.__wrapped__()
