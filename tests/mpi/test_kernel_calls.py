"""The table of functions by which kernels of other libraries submit named operations."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from kernel_table import DONE, VERSION, Array, Call, Table
from mpi4py import MPI

import gradred
from gradred import _core, named
from gradred.element_types import ELEMENT_TYPES
from gradred.ops import OPS

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
SET = 4711
WELL, NOT_SERVED, REFUSED, DISAGREED, LOST, FAILED = range(6)
DTYPES = list(ELEMENT_TYPES)
numbers = itertools.count()


@dataclass
class Flight:
    """A call in flight, and how it has ended."""

    held: Any = None
    end: int = -1
    text: str = ""
    outputs: list[bytes] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> Flight:
        assert self.ended.wait(30)
        return self


def submit(
    kind: str,
    arrays: Sequence[np.ndarray[Any, Any]],
    name: str = "",
    *,
    waits: bool = False,
    in_place: bool = True,
    splits: Sequence[int] = (),
    root: int = 0,
    process_set: int = SET,
    op: str = "sum",
    wire: str = "",
) -> Flight:
    flight = Flight()

    def done(_context: Any, result: Any) -> None:
        found = result.contents
        flight.end, flight.text = found.end, found.text.decode()
        if found.outputs:
            sizes = [found.output_bytes[i] for i in range(len(arrays))]
            flight.outputs = [ctypes.string_at(found.outputs[i], n) for i, n in enumerate(sizes)]
        if found.rows:
            flight.rows = [
                [found.rows[i][rank] for rank in range(found.ranks)] for i in range(len(arrays))
            ]
        flight.ended.set()

    shapes = [(ctypes.c_int64 * one.ndim)(*one.shape) for one in arrays]
    described = (Array * len(arrays))(
        *(
            Array(
                one.ctypes.data,
                one.ctypes.data if in_place else None,
                DTYPES.index(one.dtype.name),
                one.ndim,
                shape,
            )
            for one, shape in zip(arrays, shapes, strict=True)
        )
    )
    given = (ctypes.c_int64 * len(splits))(*splits)
    head = (process_set, kind.encode(), name.encode(), list(OPS).index(op), 1.0, 1.0, root)
    call = Call(*head, b"", wire.encode(), described, len(arrays), given, len(splits))
    callback = DONE(done)
    flight.held = (callback, call, arrays)
    table = Table.from_address(_core.kernel_calls())
    assert table.version == VERSION
    table.submit(call, waits, callback, None)
    return flight


@pytest.fixture(autouse=True)
def engine() -> Iterator[named.NamedOperations]:
    made = named.NamedOperations(COMM)
    _core.serve_kernels(SET, made)
    yield made
    COMM.Barrier()
    _core.serve_kernels(SET, None)
    made.free()


@pytest.mark.parametrize("waits", [False, True])
def test_many_arrays_of_several_types_end_together(waits: bool) -> None:
    arrays = [np.full(n, RANK + 1, "float32" if n % 3 else "int64") for n in range(50)]
    flight = submit("allreduce", arrays, "many", waits=waits).wait()
    assert (flight.end, flight.text) == (WELL, "")
    for one in arrays:
        assert (one == SIZE * (SIZE + 1) // 2).all()


def test_wires_are_compared_and_have_a_name() -> None:
    x = np.ones(3, "float32")
    assert submit("allreduce", [x], "one wire", wire="bf16").wait().end == WELL
    np.testing.assert_array_equal(x, SIZE)
    if SIZE > 1:
        other = submit("allreduce", [x], "two wires", wire="int8" if RANK else "bf16").wait()
        assert (other.end, "Mismatched compressed wires" in other.text) == (DISAGREED, True)
    none = submit("allreduce", [x], "no wire", wire="int3").wait()
    assert (none.end, "int3" in none.text) == (REFUSED, True)


def test_calls_in_any_order_end_without_a_thread_that_waits_for_them() -> None:
    order = list(range(200))
    if RANK % 2:
        order.reverse()
    arrays = {i: np.full(10, float(i + RANK)) for i in order}
    flights = [submit("allreduce", [arrays[i]], f"order.{i}") for i in order]
    for one in flights:
        assert one.wait().end == WELL
    for i, array in arrays.items():
        assert (array == sum(i + rank for rank in range(SIZE))).all()


@pytest.mark.parametrize("waits", [False, True])
def test_results_with_rows(waits: bool) -> None:
    mine = np.full((RANK + 1, 2), RANK, "int32")
    flight = submit("allgather", [mine, mine], waits=waits, in_place=False).wait()
    expected = np.concatenate([np.full((rank + 1, 2), rank, "int32") for rank in range(SIZE)])
    assert flight.outputs == [expected.tobytes()] * 2
    assert flight.rows == [[rank + 1 for rank in range(SIZE)]] * 2
    even = submit("alltoall", [np.arange(SIZE, dtype="int64")], in_place=False).wait()
    assert even.outputs == [np.full(SIZE, RANK, "int64").tobytes()]
    rows = submit("reducescatter", [np.ones((SIZE + 1, 1))], in_place=False).wait()
    assert rows.rows == [[2] + [1] * (SIZE - 1)]
    assert rows.outputs == [np.full(2 if RANK == 0 else 1, float(SIZE)).tobytes()]


def test_wrong_arguments_are_refused_on_this_rank() -> None:
    array = np.ones(3)
    assert submit("allreduce", [array], process_set=SET + 1).wait().end == NOT_SERVED
    for words, text in {
        ("alltoall", (4,) * SIZE): "splits give out",
        ("nothing", ()): "not a kind of named operation",
    }.items():
        flight = submit(words[0], [array], in_place=False, splits=words[1]).wait()
        assert flight.end == REFUSED
        assert text in flight.text
    scalar = submit("allgather", [np.ones(())], in_place=False).wait()
    assert scalar.end == REFUSED
    assert "no axis" in scalar.text


def test_refused_part_of_a_call_leaves_the_others_to_end() -> None:
    """The first part is in flight; booleans cannot be averaged."""
    arrays = [np.ones(3), np.ones(3, bool)]
    flight = submit("allreduce", arrays, "parts", op="avg").wait()
    assert flight.end == REFUSED
    assert ("bool cannot be averaged" if SIZE > 1 else "not defined for bool") in flight.text
    assert (arrays[0] == 1).all()


def test_peers_learn_of_refused_arguments() -> None:
    """Rank 0's second part is of a type that it cannot average, and so is not carried out."""
    if SIZE == 1:
        pytest.skip("one rank alone")
    last = bool if RANK == 0 else "int32"
    arrays = [np.ones(3), np.ones(3, last), np.ones(3, "float32")]
    flight = submit("allreduce", arrays, "peers", op="avg").wait()
    assert flight.end == (REFUSED if RANK == 0 else DISAGREED)
    assert "bool cannot be averaged" in flight.text
    if RANK > 0:
        assert "rank 0 has refused its arguments" in flight.text
    COMM.Barrier()
    again = [np.ones(3), np.ones(3, "int32")]
    assert submit("allreduce", again, "again").wait().end == WELL


@pytest.mark.parametrize("waits", [False, True])
def test_ranks_that_differ_learn_it_together(waits: bool) -> None:
    if SIZE == 1:
        pytest.skip("one rank alone")
    flight = submit("allreduce", [np.ones(2 + RANK)], "different", waits=waits).wait()
    assert flight.end == DISAGREED
    assert "Mismatched" in flight.text
    again = np.ones(2)
    assert submit("allreduce", [again], "different", waits=waits).wait().end == WELL
    assert (again == SIZE).all()


def test_operations_end_when_a_rank_leaves(engine: named.NamedOperations) -> None:
    if SIZE == 1:
        pytest.skip("one rank alone")
    flights = []
    if RANK > 0:
        flights = [submit("allreduce", [np.ones(3)], f"late.{i}") for i in range(3)]
    COMM.Barrier()
    if RANK == 0:
        engine.close()
    for one in flights:
        assert one.wait().end in (LOST, FAILED)
        assert "left" in one.text
