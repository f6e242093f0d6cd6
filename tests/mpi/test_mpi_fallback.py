"""Reductions that the MPI carries out: the ranks agree on them before the MPI begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi import sizes
from mpi4py import MPI

import gradred
from gradred import UsageError
from gradred.buffers import messages

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

pytestmark = [
    sizes.up_to_three_ranks,
    pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself"),
    pytest.mark.usefixtures("usable"),
]


def add(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    x, y = np.frombuffer(a, "int64"), np.frombuffer(b, "int64")
    y += x


OWN = MPI.Op.Create(add, commute=True)
IN_ORDER = MPI.Op.Create(add, commute=False)
PAIR = np.dtype([("value", "f8"), ("index", "i4")], align=True)
TWO_INT64 = MPI.INT64_T.Create_contiguous(2).Commit()
TWO_INT32 = MPI.INT32_T.Create_contiguous(2).Commit()
ROOMY = MPI.INT64_T.Create_resized(0, 16).Commit()

Run = Callable[[gradred.Comm], Any]


def allreduce(count: int, dtype: Any, datatype: Any = None, op: MPI.Op = OWN) -> Run:
    """An Allreduce. If it fails, asserts that gradred has not changed the result."""

    def run(comm: gradred.Comm) -> None:
        x, y = np.ones(count, dtype), np.full(count, 7, dtype)
        specs: list[Any] = [x, y] if datatype is None else [[x, datatype], [y, datatype]]
        try:
            comm.Allreduce(*specs, op)
        except UsageError:
            assert (y == np.full(count, 7, dtype)).all() or op == MPI.SUM
            raise

    return run


def init(comm: gradred.Comm) -> None:
    comm.Allreduce_init(np.ones(5, "int64"), np.ones(5, "int64"), OWN).Free()


def scatter(count: int) -> Run:
    return lambda comm: comm.Reduce_scatter_block(
        np.ones(count * SIZE, "int64"), np.empty(count, "int64"), OWN
    )


def of_array(shape: tuple[int, ...]) -> Run:
    return lambda comm: gradred.allreduce(np.ones(shape, "int64"), OWN, comm=comm)


DIFFERENT: dict[str, tuple[Run, Run, str]] = {
    "predefined operation": (
        allreduce(2, PAIR, MPI.DOUBLE_INT, MPI.MINLOC),
        allreduce(2, PAIR, MPI.DOUBLE_INT, MPI.MAXLOC),
        "Allreduce of 2 elements of MPI_DOUBLE_INT with MPI_MINLOC",
    ),
    "count": (allreduce(5, "int64"), allreduce(3, "int64"), "Allreduce of 5 int64 with an op"),
    "type": (allreduce(4, "int32"), allreduce(4, "float32"), "Allreduce of 4 int32 with an op"),
    "derived type": (
        allreduce(4, "int32", TWO_INT32),
        allreduce(4, "int64", TWO_INT64),
        "Allreduce of 2 elements of a derived type of 8 bytes with",
    ),
    "elements of a derived type": (
        allreduce(4, "int64", TWO_INT64),
        allreduce(4, "int64", ROOMY),
        "Allreduce of 2 elements of a derived type of 16 bytes with",
    ),
    "own operation's order": (
        allreduce(5, "int64"),
        allreduce(5, "int64", op=IN_ORDER),
        "Allreduce of 5 int64 with an op",
    ),
    "own or predefined operation": (
        allreduce(5, "int64"),
        allreduce(5, "int64", op=MPI.SUM),
        "allreduce of 5 int64 with sum",
    ),
    "persistent or not": (init, allreduce(5, "int64"), "of 5 int64 with an op"),
    "blocks": (scatter(2), scatter(3), "Reduce_scatter_block of 2 int64"),
    "kind": (allreduce(2, "int64"), scatter(2), "Allreduce of 2 int64"),
    "shape": (of_array((2, 3)), of_array((3, 2)), "Allreduce of 6 int64"),
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize("odd", [0, SIZE - 1])
def test_ranks_whose_calls_differ_raise_on_every_rank(
    comm: gradred.Comm, what: str, odd: int
) -> None:
    ours, theirs, says = DIFFERENT[what]
    with pytest.raises(UsageError, match="disagree") as caught:
        (ours if odd == RANK else theirs)(comm)
    if odd == RANK:
        assert says in str(caught.value)


def test_own_operations_add_what_all_ranks_have(comm: gradred.Comm) -> None:
    x, y = np.arange(5) + RANK, np.zeros(5, "int64")
    comm.Allreduce(x, y, OWN)
    assert (y == np.arange(5) * SIZE + SIZE * (SIZE - 1) // 2).all()
    comm.Allreduce(MPI.IN_PLACE, x, OWN)
    assert (x == y).all()
    blocks, block = np.arange(3 * SIZE) + RANK, np.zeros(3, "int64")
    comm.Reduce_scatter_block(blocks, block, OWN)
    expected = np.arange(3 * SIZE) * SIZE + SIZE * (SIZE - 1) // 2
    assert (block == expected[3 * RANK : 3 * RANK + 3]).all()


def test_persistent_own_operation_adds_what_all_ranks_have(comm: gradred.Comm) -> None:
    x, y = np.full(4, RANK + 1), np.zeros(4, "int64")
    try:
        persistent = comm.Allreduce_init(x, y, OWN)
    except NotImplementedError:  # Open MPI 5 has them, although it reports version 3.1
        pytest.skip("mpi4py finds none in this MPI")
    persistent()
    persistent.Free()
    assert (y == SIZE * (SIZE + 1) // 2).all()


def test_names_for_one_type_are_no_difference(comm: gradred.Comm) -> None:
    """Such names may differ between ranks, and between input and result."""
    own = "q" if RANK == 0 else "l"  # both types have 8 bytes
    for x, y in ((own, own), ("q", "l")):
        result = np.zeros(5, y)
        comm.Allreduce(np.full(5, RANK + 1, x), result, OWN)
        assert (result == SIZE * (SIZE + 1) // 2).all()
    derived = TWO_INT64.Dup() if RANK == 0 else MPI.INT64_T.Create_contiguous(2)
    x, y = np.full(6, RANK + 1), np.zeros(6, "int64")
    comm.Allreduce([x, derived], [y, derived], OWN)  # the type is not committed
    assert (y == SIZE * (SIZE + 1) // 2).all()
    derived.Free()


def test_empty_reductions_of_derived_types_are_carried_out(comm: gradred.Comm) -> None:
    comm.Allreduce([None, 0, TWO_INT64], [None, 0, TWO_INT64], OWN)
    comm.Allreduce([np.empty(0), 0, TWO_INT64], [np.empty(0), 0, TWO_INT64], OWN)


def test_columns_that_interleave_are_not_taken_for_overlapping(comm: gradred.Comm) -> None:
    matrix = np.arange(8).reshape(4, 2).copy()
    left, right = [matrix, (4, 0), ROOMY], [matrix.reshape(-1)[1:], (4, 0), ROOMY]
    largest = MPI.Op.Create(lambda a, b, _: None, commute=True)
    comm.Allreduce(left, right, largest)
    comm.Allreduce(left, left if RANK == 0 else right, largest)  # in place on rank 0
    largest.Free()


METHODS = [name for name in messages.KINDS if not name.endswith("_init")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("datatype", [None, TWO_INT64], ids=["int64", "two int64"])
def test_an_array_given_twice_is_in_place(
    comm: gradred.Comm, method: str, datatype: MPI.Datatype | None
) -> None:
    blocks = messages.blocks_of(method, comm)
    x = np.arange(4 * blocks) + RANK
    spec = (lambda a: a) if datatype is None else (lambda a: [a, datatype])
    expected = np.zeros(4, "int64")
    getattr(MPI.Intracomm, method.removeprefix("I").capitalize())(comm, x.copy(), expected)
    request = getattr(comm, method)(spec(x), spec(x[:4]), OWN)
    if request is not None:
        request.Wait()
    if "exscan" not in method.lower() or RANK > 0:  # MPI leaves the first rank's open
        assert (x[:4] == expected).all()
    assert (x[4:] == np.arange(4, 4 * blocks) + RANK).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_part_of_recvbuf_is_not_in_place(comm: gradred.Comm, method: str) -> None:
    x = np.arange(8 * SIZE)
    with pytest.raises(UsageError, match="Pass as many elements in both"):
        getattr(comm, method)(x[: 4 * SIZE], x, OWN)
    sent = [x[: 8 * messages.blocks_of(method, comm)], TWO_INT64]
    with pytest.raises(UsageError, match="Pass two buffers of one type"):
        getattr(comm, method)(sent, [x[:8], ROOMY], MPI.SUM)
    assert (x == np.arange(8 * SIZE)).all()
