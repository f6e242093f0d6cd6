"""Any named operations, in any order on each rank: hypothesis draws both.

All ranks draw the same examples, because the seed is fixed (tests/drawn.py). So a rank knows what
the others submit, and when.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from drawn import Phase, given, settings, st
from mpi4py import MPI

import gradred
from gradred import named

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
KINDS = [
    "sum",
    "max",
    "large sum",
    "allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "barrier",
]
names = itertools.count()


@pytest.fixture(scope="module")
def engine() -> Iterator[named.NamedOperations]:
    made = named.NamedOperations(COMM)
    yield made
    made.free()


@dataclass(frozen=True)
class Asked:
    """One operation, as all ranks draw it."""

    kind: str
    dtype: str
    rows: int
    group: int  # number of arrays
    priority: int


def operations() -> st.SearchStrategy[Asked]:
    rows = st.sampled_from([0, 1, 3, 200, 5000, 70_000])
    types = st.sampled_from(["int16", "float32", "int64"])
    priority = st.integers(-2, 2)
    return st.builds(Asked, st.sampled_from(KINDS), types, rows, st.integers(1, 20), priority)


class Submitted:
    """This rank's part of one operation; the number gives each operation other values."""

    def __init__(self, engine: named.NamedOperations, asked: Asked, name: str, number: int) -> None:
        self.asked, self.number = asked, number % 50
        reduced = asked.kind in ("sum", "large sum", "max")
        group = {"sum": asked.group, "max": asked.group, "barrier": 0}.get(asked.kind, 1)
        rows = self.rows_of(RANK)
        self.arrays = [np.full(rows, self.value_of(RANK) + i, asked.dtype) for i in range(group)]
        in_place = reduced or asked.kind == "broadcast"
        arrays = [
            (x.ctypes.data, x.ctypes.data if in_place else 0, asked.dtype, x.shape)
            for x in self.arrays
        ]
        kind = "allreduce" if reduced else asked.kind
        how: dict[str, Any] = {"op": "max"} if asked.kind == "max" else {}
        how |= {"priority": asked.priority * (RANK + 1)}
        how |= {"root": self.root} if kind == "broadcast" else {}
        how |= (
            {"splits": [self.split(RANK, to) for to in range(SIZE)]} if kind == "alltoall" else {}
        )
        self.request = engine.submit(kind, name, arrays, **how)

    @property
    def root(self) -> int:
        return self.number % SIZE

    def value_of(self, rank: int) -> int:
        return self.number + 100 * rank

    def split(self, source: int, to: int) -> int:
        return self.asked.rows // SIZE + (source + to) % 3

    def rows_of(self, rank: int) -> int:
        if self.asked.kind == "large sum":  # it has several chunks
            return 14_000_000 // np.dtype(self.asked.dtype).itemsize + self.asked.rows
        if self.asked.kind == "allgather":
            return self.asked.rows // (rank + 1)
        if self.asked.kind == "alltoall":
            return sum(self.split(rank, to) for to in range(SIZE))
        return self.asked.rows

    def check(self) -> None:
        self.request.wait(30)
        kind, values = self.asked.kind, [self.value_of(rank) for rank in range(SIZE)]
        if kind in ("sum", "large sum", "max", "broadcast"):
            for i, x in enumerate(self.arrays):
                expected = {"sum": sum(values) + SIZE * i, "max": values[-1] + i}
                expected["large sum"] = sum(values)
                assert (x == expected.get(kind, values[self.root])).all()
        elif kind != "barrier":
            got = self.request.outputs[0].view(self.asked.dtype)
            np.testing.assert_array_equal(got, self.expected(values))

    def expected(self, values: list[int]) -> Any:
        if self.asked.kind == "allgather":
            return np.repeat(values, [self.rows_of(rank) for rank in range(SIZE)])
        if self.asked.kind == "alltoall":
            return np.repeat(values, [self.split(source, RANK) for source in range(SIZE)])
        each, more = divmod(self.asked.rows, SIZE)
        return np.full(each + (more > RANK), sum(values))


@settings(phases=[Phase.generate])  # a rank that shrinks an example would do so alone
@given(data=st.data())
def test_results_are_right_in_any_order_on_any_rank(
    engine: named.NamedOperations, data: st.DataObject
) -> None:
    asked = data.draw(st.lists(operations(), min_size=1, max_size=12), label="operations")
    orders = st.lists(st.permutations(range(len(asked))), min_size=SIZE, max_size=SIZE)
    submits = data.draw(orders, label="submitted, by rank")[RANK]
    waits = data.draw(orders, label="waited for, by rank")[RANK]
    example = next(names)
    made = {i: Submitted(engine, asked[i], f"drawn{example}.{i}", i) for i in submits}
    for i in waits:
        made[i].check()
