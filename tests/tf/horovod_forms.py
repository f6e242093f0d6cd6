"""Every way of writing a call of Horovod's for TensorFlow and Keras, and its result.

The result is computed with NumPy from the inputs of all ranks, which each rank can make.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from horovod_calls import Form, Table
from tf.given import hvd, tf

import gradred.keras

OPS = ("Average", "Sum", "Min", "Max", "Product")
VALUES: dict[str, Sequence[Any]] = {
    "average": [True, False],
    "name": ["a name"],
    "compression": ["none", "fp16"],
    "op": OPS,
    "prescale_factor": [0.5],
    "postscale_factor": [2.0],
    "process_set": ["all", "half"],
    "root_rank": ["first", "last"],
    "splits": ["list", "tuple", "tensor"],
    "device_dense": ["/cpu:0"],
    "device_sparse": ["/cpu:0"],
    "ignore_name_scope": [True],
    "inplace": [True, False],
    "sparse_as_dense": [True, False],
    "gradient_predivide_factor": [2.0],
    "num_groups": [2],
    "groups": [1, 2, "lists"],
    "scale_local_gradients": [True, False],
    "local_layers": [()],
}
DTYPES = ["float32", "float64", "int32", "int64", "float16"]
TABLES = {"tensorflow": Table(hvd, VALUES, DTYPES), "keras": Table(gradred.keras, VALUES, DTYPES)}
FUNCTIONS = [
    *(("tensorflow", one) for one in ("allreduce", "grouped_allreduce", "allgather")),
    *(("tensorflow", one) for one in ("grouped_allgather", "broadcast", "broadcast_")),
    *(("tensorflow", one) for one in ("broadcast_variables", "alltoall", "reducescatter")),
    ("tensorflow", "grouped_reducescatter"),
    *(("keras", one) for one in ("allreduce", "allgather", "broadcast", "reducescatter")),
]
WAYS = ["constant", "variable", "array", "graph"]
"""What a call gets: a tensor, a variable or an array, eagerly, or a tensor in a `tf.function`."""

NOT_SERVED = {
    "op=Adasum": "has tests of its own (test_collectives.py)",
    "reducescatter(op=Min, Max, Product)": "Horovod refuses them as well",
    "IndexedSlices": "have tests of their own (test_collectives.py)",
    "join": "takes no argument (test_collectives.py)",
    "size_op, rank_op and others of the process": "return numbers (test_collectives.py)",
    "broadcast_object, allgather_object": "take no tensors (test_collectives.py)",
}

TAPES = ("DistributedGradientTape", "PartialDistributedGradientTape")
_SHAPES = [(4, 3), (6,), (8, 2, 2)]


class Carried:
    """A form that is carried out over the ranks of its set.

    Args:
        front_end: "tensorflow" or "keras".
        form: the form.
        way: one of WAYS.
        half: the process set of this rank's half of the ranks; None: there is none.
    """

    def __init__(self, front_end: str, form: Form, way: str, half: Any) -> None:
        self.module, self.form, self.way = TABLES[front_end].module, form, way
        uses_half = form.given.get("process_set") == "half" and half is not None
        self.set = half if uses_half else hvd.global_process_set
        self.ranks: list[int] = self.set.ranks
        self.writes = form.function in ("broadcast_", "broadcast_variables")
        self.takes_list = form.is_grouped or self.writes
        places = range(len(_SHAPES)) if self.takes_list else [0]
        each = len(self.ranks) if form.kind in ("alltoall", "reducescatter") else 1
        self.shapes = [(_SHAPES[place][0] * each, *_SHAPES[place][1:]) for place in places]
        way = "variable" if self.writes else way
        make = {"array": lambda x: x, "variable": tf.Variable}.get(way, tf.constant)
        self.inputs = [make(one) for one in self.inputs_of(hvd.rank())]

    def inputs_of(self, rank: int) -> list[Any]:
        """The inputs of a rank: of small numbers, so that no sum is rounded."""
        return [
            ((np.arange(math.prod(shape)) + 3 * rank + place) % 4 + 1)
            .reshape(shape)
            .astype(self.form.dtype)
            for place, shape in enumerate(self.shapes)
        ]

    def value(self, key: str, value: Any) -> Any:
        """The object that an argument gets for a value of VALUES."""
        size = len(self.ranks)
        if key == "op" and isinstance(value, str):
            return getattr(hvd, value)
        if key == "compression" and isinstance(value, str):
            return getattr(hvd.Compression, value)
        if key == "process_set":
            return self.set
        if key == "root_rank":
            return self.ranks[0 if value == "first" else -1]
        if key == "splits" and value is not None:
            rows = [self.shapes[0][0] // size] * size
            return {"list": rows, "tuple": tuple(rows), "tensor": tf.constant(rows)}[value]
        return value

    def call(self) -> list[Any]:
        """Make the call, and return its results as arrays."""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", DeprecationWarning)
            found = self._in_its_way(self.inputs if self.takes_list else self.inputs[0])
        kinds = [one for one in warned if "average is deprecated" in str(one.message)]
        assert len(kinds) == (self.form.given.get("average") is not None)
        if not self.writes:
            mine = self.inputs_of(hvd.rank())
            assert all(map(np.array_equal, self.inputs, mine)), "the input has changed"
        return self._results_of(found)

    def _called(self, first: Any) -> Any:
        form = self.form
        by_position = [self.value(*one) for one in form.by_position]
        by_keyword = {key: self.value(key, value) for key, value in form.by_keyword}
        function = getattr(self.module, form.function)
        if form.first_by_keyword:
            return function(*by_position, **by_keyword, **{form.first: first})
        return function(first, *by_position, **by_keyword)

    def _in_its_way(self, first: Any) -> Any:
        if self.way != "graph":
            return self._called(first)
        if not self.writes:
            return tf.function(self._called)(first)

        def written() -> Any:  # variables are no arguments of a graph, and operations no results
            found = self._called(first)
            return None if isinstance(found, tf.Operation) else found

        return tf.function(written)()

    def _results_of(self, found: Any) -> list[Any]:
        """What Horovod's documentation says is returned, as a list of arrays."""
        form = self.form
        if form.function == "broadcast_variables":
            assert found is None
            found = self.inputs
        elif form.function == "broadcast_":
            for one, variable in zip(found, self.inputs, strict=True):
                np.testing.assert_array_equal(one, variable)
        elif form.kind == "alltoall" and form.given.get("splits") is not None:
            found, received = found
            assert received.dtype == tf.int32
            assert received.numpy().tolist() == [self.shapes[0][0] // len(self.ranks)] * len(
                self.ranks
            )
        assert isinstance(found, list) == self.takes_list
        made = found if self.takes_list else [found]
        assert all(one.dtype == form.dtype for one in made)
        return [np.asarray(tf.convert_to_tensor(one)) for one in made]

    def expected(self) -> list[Any]:
        """The results, computed from the inputs of all ranks."""
        by_place = zip(*(self.inputs_of(rank) for rank in self.ranks), strict=True)
        return [self._expected(inputs) for inputs in by_place]

    def _expected(self, inputs: Sequence[Any]) -> Any:
        kind, given = self.form.kind, self.form.given
        me, size = self.ranks.index(hvd.rank()), len(self.ranks)
        if kind == "allgather":
            return np.concatenate(inputs)
        if kind == "broadcast":
            return inputs[0 if given["root_rank"] == "first" else -1]
        if kind == "alltoall":
            return np.concatenate([np.split(one, size)[me] for one in inputs])
        whole = _reduced(inputs, given)
        return whole if kind == "allreduce" else np.split(whole, size)[me]


def _reduced(inputs: Sequence[Any], given: dict[str, Any]) -> Any:
    """The reduction of all ranks' inputs, with Horovod's rules for factors and integers."""
    op = given.get("op")
    if not isinstance(op, str):  # the default, or `average`
        op = "Sum" if given.get("average") is False else "Average"
    dtype = inputs[0].dtype
    before, after = given.get("prescale_factor", 1.0), given.get("postscale_factor", 1.0)
    scaled = np.stack([_times(one, before) for one in inputs]).astype("float64")
    by = {"Min": np.min, "Max": np.max, "Product": np.prod}.get(op, np.sum)
    found = by(scaled, axis=0).astype(dtype)
    return _times(found, after / len(inputs) if op == "Average" else after)


def _times(x: Any, factor: float) -> Any:
    """The product in the type of `x`; of integers, truncated toward zero."""
    wide = x.astype("float64") * factor
    if x.dtype.kind == "i":
        wide = np.trunc(wide + np.sign(wide) * 1e-9)  # 1 / 3 is no exact factor
    return wide.astype(x.dtype)


# ---- tapes --------------------------------------------------------------------------------------


def forms_of_tapes(*, full: bool) -> list[Form]:
    """Forms of the wrapped tapes, of which Horovod takes the arguments together."""
    table, share = TABLES["tensorflow"], 5 if full else 1  # to trace all would take minutes
    found = [form for tape in TAPES for form in table.forms_of(tape, full=full)[::share]]
    return [
        form
        for form in found
        if form.given.get("gradient_predivide_factor", 1.0) == 1.0
        or form.given.get("op", "Average") in ("Average", hvd.Average)
    ]


class Tape(Carried):
    """A form of a wrapped tape, which gives the gradients of three variables."""

    def __init__(self, form: Form, way: str, half: Any) -> None:
        super().__init__("tensorflow", form, way, half)
        dtype = form.dtype if form.dtype.startswith("float") else "float32"
        self.variables = [tf.Variable(tf.ones(shape, dtype)) for shape in _SHAPES]

    def value(self, key: str, value: Any) -> Any:
        """The object that an argument gets for a value of VALUES."""
        if key == "groups" and value == "lists":
            return [self.variables[1:], self.variables[:1]]
        return super().value(key, value)

    def gradients(self) -> list[Any]:
        """The gradients as arrays."""

        def compute() -> Any:
            with self._called(tf.GradientTape()) as tape:
                sums = [
                    tf.reduce_sum(one) * (hvd.rank() + place + 1)
                    for place, one in enumerate(self.variables)
                ]
                loss = tf.add_n(sums)
            return tape.gradient(loss, self.variables)

        found = (tf.function(compute) if self.way == "graph" else compute)()
        return [one.numpy() for one in found]

    def gradients_expected(self) -> list[Any]:
        """Their reductions over the ranks of the set."""
        op = {"op": self.form.given.get("op")}
        return [
            _reduced([np.full(shape, rank + place + 1.0) for rank in self.ranks], op)
            for place, shape in enumerate(_SHAPES)
        ]
