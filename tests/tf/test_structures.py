"""Nests whose structures differ between the ranks are an error: their leaves go by place."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest
from tf.given import hvd, tf

import gradred.keras
from gradred.tensorflow.structures import structure_of

pytestmark = pytest.mark.usefixtures("initialised")

Point = collections.namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Layer:
    """A container of TensorFlow's protocol; its first field is data."""

    names: tuple[Any, ...]
    one: Any
    other: Any

    def __tf_flatten__(self) -> tuple[Any, Any]:
        return (self.names,), (self.one, self.other)

    @classmethod
    def __tf_unflatten__(cls, data: Any, children: Any) -> Layer:
        return cls(*data, *children)


@pytest.fixture(params=["eager", "graph"])
def gradients_of(request: pytest.FixtureRequest) -> Any:
    """A function of a nest of variables: their gradients, each this rank's number and one."""

    def compute(sources: Any, used: Any = None) -> Any:
        flat = tf.nest.flatten(sources) if used is None else used

        def traced() -> Any:
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.add_n([tf.reduce_sum(one) * (hvd.rank() + 1.0) for one in flat])
            return tape.gradient(loss, sources)

        return (tf.function(traced) if request.param == "graph" else traced)()

    return compute


def variables(count: int) -> list[Any]:
    return [tf.Variable(tf.ones([2]), name=f"v{i}") for i in range(count)]


def refused(call: Any, *texts: str) -> None:
    """Expect an error with both structures on all ranks, after which operations go on."""
    if hvd.size() == 1:
        call()
        return
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        call()
    for text in ("Mismatched tree structures", *texts):
        assert text in str(caught.value)
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="after")) == hvd.size()


def test_dictionaries_are_reduced_by_key(gradients_of: Any) -> None:
    one, other = variables(2)
    items = [("a", one), ("b", other)]
    found = gradients_of(dict(items if hvd.rank() == 0 else items[::-1]))
    average = (hvd.size() + 1) / 2
    for key in "ab":
        np.testing.assert_allclose(found[key], [average] * 2)


def test_other_keys_are_an_error_with_both(gradients_of: Any) -> None:
    one, other = variables(2)
    second = "b" if hvd.rank() == 0 else "c"
    refused(lambda: gradients_of({"a": one, second: other}), "'b': *", "'c': *")


def test_other_containers_are_an_error_with_both(gradients_of: Any) -> None:
    one, other = variables(2)
    mine = Point(one, other) if hvd.rank() == 0 else {"x": one, "y": other}
    refused(lambda: gradients_of(mine), "Point(x=*, y=*)", "{'x': *, 'y': *}")


def test_other_data_of_containers_is_an_error_with_both(gradients_of: Any) -> None:
    names = (0, 1) if hvd.rank() == 0 else (1, 0)
    refused(lambda: gradients_of(Layer(names, *variables(2))), "*, 0, 1)", "*, 1, 0)")


def test_first_difference_of_large_nests_is_shown(gradients_of: Any) -> None:
    one, other = variables(2)
    second = "bias" if hvd.rank() == 0 else "base"
    nest = {f"layer {i:03}": {"kernel": one} for i in range(400)}
    nest["layer 321"] = {second: other}
    refused(lambda: gradients_of(nest), "at ['layer 321']: rank", "'bias': *", "'base': *")


def test_a_gradient_that_is_none_in_another_place_is_an_error(gradients_of: Any) -> None:
    three = variables(3)
    left_out = min(hvd.rank(), 1)
    used = [one for place, one in enumerate(three) if place != left_out]
    refused(lambda: gradients_of(three, used), "[None, *, *]", "[*, None, *]")


def test_metrics_of_other_names_are_an_error() -> None:
    callback = gradred.keras.callbacks.MetricAverageCallback()
    name = "loss" if hvd.rank() == 0 else "accuracy"
    refused(lambda: callback.on_epoch_end(0, {name: 1.0}), "metrics loss", "metrics accuracy")


def test_structures_as_texts() -> None:
    x = tf.ones([2])
    assert [structure_of(one) for one in (x, [x, x], (x,), [])] == [""] * 4
    assert structure_of([x, None]) == "[*, None]"
    assert structure_of({"b": (x,), "a": [x, {"c": x}]}) == "{'a': [*, {'c': *}], 'b': (*)}"
    assert structure_of(Point(x, [x])) == "Point(x=*, y=[*])"
    assert structure_of({(1, 2): x, (0, 1): x}) == "{(0, 1): *, (1, 2): *}"
    assert structure_of(Layer(("b", "a"), x, [x, None])) == "Layer(*, [*, None], 'b', 'a')"
    assert structure_of(Layer((1, 0), x, x)) == "Layer(*, *, 1, 0)"
    assert structure_of([tf.IndexedSlices(x, [0, 1])]) == ""
