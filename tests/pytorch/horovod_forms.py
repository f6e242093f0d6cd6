"""Every way of writing a call of Horovod's for PyTorch, made from the signatures, and its result.

The result is computed from the inputs of all ranks, which each rank can make.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from horovod_calls import Form, Table
from pytorch.given import hvd, name, torch

FUNCTIONS = [
    grouped + kind + ending
    for kind, endings in {
        "allreduce": ("", "_", "_async", "_async_"),
        "allgather": ("", "_async"),
        "broadcast": ("", "_", "_async", "_async_"),
        "alltoall": ("", "_async"),
        "reducescatter": ("", "_async"),
    }.items()
    for grouped in ("", "grouped_")
    for ending in endings
    if hasattr(hvd, grouped + kind + ending)
]
TYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.float16]

OPS = {one: getattr(hvd, one) for one in ("Average", "Sum", "Min", "Max", "Product")}
VALUES: dict[str, list[Any]] = {
    "average": [True, False],
    "name": ["a name"],
    "compression": ["none", "fp16"],
    "op": list(OPS),
    "prescale_factor": [0.5],
    "postscale_factor": [2.0],
    "process_set": ["all", "half"],
    "root_rank": ["first", "last"],
    "splits": ["list", "tuple", "tensor"],
}
"""The values that a form gives to an argument, as the form's text shows them."""

NOT_SERVED = {
    "device_dense=, device_sparse=": "arguments of the functions for TensorFlow 1, without effect",
    "op=Adasum": "has tests of its own (test_adasum.py)",
    "reducescatter(op=Min, Max, Product)": "Horovod refuses them as well",
    "sparse_allreduce_async": "has one form, in test_horovod.py",
    "join, in the middle of other calls": "has tests of its own (test_horovod.py)",
}


TABLE = Table(hvd, VALUES, TYPES)


# ---- carrying it out ----------------------------------------------------------------------------

SHAPES = [(4, 3), (6,), (8, 2, 2)]


def input_of(rank: int, place: int, dtype: Any, rows: int) -> Any:
    """The tensor of a rank: of small numbers, so that no sum is rounded."""
    shape = (rows, *SHAPES[place][1:])
    count = math.prod(shape)
    return ((torch.arange(count) + 3 * rank + place) % 4 + 1).reshape(shape).to(dtype)


class Carried:
    """A form that is carried out over the ranks of its set.

    Args:
        form: the form.
        half: the process set of this rank's half of the ranks; None: there is none.
    """

    def __init__(self, form: Form, half: Any) -> None:
        self.form = form
        given = form.given
        uses_half = given.get("process_set") == "half" and half is not None
        self.set = half if uses_half else hvd.global_process_set
        self.ranks: list[int] = self.set.ranks
        self.places = [0, 1, 2] if form.is_grouped else [0]
        size = len(self.ranks)
        self.rows = [
            SHAPES[place][0] * (size if form.kind in ("alltoall", "reducescatter") else 1)
            for place in self.places
        ]
        self.inputs = [self.input_of(hvd.rank(), place) for place in self.places]

    def input_of(self, rank: int, place: int) -> Any:
        """The input that a rank has."""
        return input_of(rank, place, self.form.dtype, self.rows[self.places.index(place)])

    def value(self, key: str, value: Any) -> Any:
        """The object that an argument gets for a value of VALUES."""
        size = len(self.ranks)
        if key == "name" and value is not None:
            return name()
        if key == "op" and value is not None:
            return OPS[value] if isinstance(value, str) else value
        if key == "compression" and isinstance(value, str):
            return getattr(hvd.Compression, value)
        if key == "process_set":
            return self.set
        if key == "root_rank":
            return self.ranks[0 if value == "first" else -1]
        if key == "splits" and value is not None:
            rows = [self.rows[0] // size] * size
            made = torch.tensor(rows, dtype=torch.int32)
            return {"list": rows, "tuple": tuple(rows), "tensor": made}[value]
        return value

    def call(self) -> Any:
        """Make the call, and return its results as a list."""
        form = self.form
        first = self.inputs if form.is_grouped else self.inputs[0]
        before = [one.clone() for one in self.inputs]
        by_position = [self.value(*one) for one in form.by_position]
        by_keyword = {key: self.value(key, value) for key, value in form.by_keyword}
        if form.first_by_keyword:
            by_keyword[form.first] = first
        else:
            by_position.insert(0, first)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = getattr(hvd, form.function)(*by_position, **by_keyword)
        kinds = [one.category for one in warned]
        assert kinds == [DeprecationWarning] * (form.given.get("average") is not None), kinds
        if form.is_async:
            assert type(found) is int
            assert hvd.poll(found) in (True, False)
            found = hvd.synchronize(found)
        if not form.in_place:
            assert all(map(torch.equal, self.inputs, before)), "the input has changed"
        return self.results_of(found)

    def results_of(self, found: Any) -> list[Any]:
        """What Horovod's documentation says is returned, as a list of tensors."""
        form = self.form
        if form.kind == "alltoall":
            if form.given.get("splits") is None and not form.is_async:
                return [found]
            made, received = found
            size = len(self.ranks)
            assert received.dtype == torch.int32
            assert received.tolist() == [self.rows[0] // size] * size
            return [made]
        if not form.is_grouped:
            assert isinstance(found, torch.Tensor)
            found = [found]
        elif form.is_async or form.in_place or form.kind == "allgather":
            assert type(found) is tuple
        else:
            assert type(found) is list
        if form.in_place:
            assert all(one is given for one, given in zip(found, self.inputs, strict=True))
        return list(found)

    def expected(self) -> list[Any]:
        """The results, computed from the inputs of all ranks."""
        return [self._expected(place) for place in self.places]

    def _expected(self, place: int) -> Any:
        form, given = self.form, self.form.given
        inputs = [self.input_of(rank, place) for rank in self.ranks]
        me, size = self.ranks.index(hvd.rank()), len(self.ranks)
        if form.kind == "allgather":
            return torch.cat(inputs)
        if form.kind == "broadcast":
            return inputs[0 if given["root_rank"] == "first" else -1]
        if form.kind == "alltoall":
            return torch.cat([one.chunk(size)[me] for one in inputs])
        whole = reduced(inputs, given)
        return whole if form.kind == "allreduce" else whole.chunk(size)[me]


def reduced(inputs: Sequence[Any], given: dict[str, Any]) -> Any:
    """The reduction of all ranks' inputs, with Horovod's rules for factors and integers."""
    op = given.get("op")
    if not isinstance(op, str):  # the default, or `average`
        op = "Sum" if given.get("average") is False else "Average"
    dtype = inputs[0].dtype
    before, after = given.get("prescale_factor", 1.0), given.get("postscale_factor", 1.0)
    scaled = torch.stack([times(one, before) for one in inputs]).double()
    found = {
        "Min": lambda: scaled.amin(0),
        "Max": lambda: scaled.amax(0),
        "Product": lambda: scaled.prod(0),
    }.get(op, lambda: scaled.sum(0))()
    found = times(found.to(dtype), after / len(inputs) if op == "Average" else after)
    return found.to(dtype)


def times(x: Any, factor: float) -> Any:
    """The product in the type of `x`; of integers, truncated toward zero."""
    wide = x.double() * factor
    if not x.dtype.is_floating_point:
        return (wide + torch.sign(wide) * 1e-9).trunc().to(x.dtype)  # 1 / 3 is no exact factor
    return wide.to(x.dtype)
