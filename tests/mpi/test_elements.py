"""Bcast and Allgather: which descriptions of a message are equal, and which are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi import sizes
from mpi4py import MPI

import gradred
from gradred import UsageError
from gradred.buffers import typemaps

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

pytestmark = sizes.up_to_three_ranks
several = pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")


class Types:
    """Derived types of four floats, and others; all are freed together."""

    def __init__(self) -> None:
        f, i, d = MPI.FLOAT, MPI.INT, MPI.DOUBLE
        pair = MPI.Datatype.Create_struct([1, 1], [0, 8], [d, i])
        inner = f.Create_vector(2, 1, 2)
        self.four_floats = {
            "contiguous": f.Create_contiguous(4),
            "vector": f.Create_vector(2, 2, 3),
            "hvector": f.Create_hvector(4, 1, 8),
            "indexed": f.Create_indexed([1, 3], [5, 0]),
            "hindexed": f.Create_hindexed([3, 1], [0, 20]),
            "indexed_block": f.Create_indexed_block(2, [0, 4]),
            "hindexed_block": f.Create_hindexed_block(2, [0, 16]),
            "struct": MPI.Datatype.Create_struct([1, 3], [0, 8], [f, f]),
            "struct of types": MPI.Datatype.Create_struct([1, 2], [0, 12], [inner, f]),
            "subarray": f.Create_subarray([3, 4], [2, 2], [0, 1]),
            "darray": f.Create_darray(1, 0, [4], [MPI.DISTRIBUTE_BLOCK], [4], [1]),
            "resized": f.Create_contiguous(4).Create_resized(0, 64),
            "twice two": inner.Create_contiguous(2),
            "dup": f.Create_vector(4, 1, 2).Dup(),
        }
        self.pair = pair
        self.pairs = MPI.Datatype.Create_struct([1, 1, 1, 1], [0, 8, 16, 24], [d, i, d, i])
        self.swapped = MPI.Datatype.Create_struct([1, 1], [0, 8], [i, d])


TYPES = Types()


def basics(datatype: MPI.Datatype) -> typemaps.Basics:
    return typemaps.of_datatype(datatype)


@pytest.mark.parametrize("name", TYPES.four_floats)
def test_types_of_the_same_elements_are_equal_whatever_their_gaps(name: str) -> None:
    found = basics(TYPES.four_floats[name])
    assert found == basics(MPI.FLOAT) * 4
    assert basics(TYPES.four_floats[name]) is found  # the type was analysed once
    assert found != basics(MPI.FLOAT) * 5
    assert found != basics(MPI.INT) * 4


def test_order_and_number_of_mixed_elements_count() -> None:
    d, i = basics(MPI.DOUBLE), basics(MPI.INT)
    assert basics(TYPES.pair) == d + i == basics(MPI.DOUBLE_INT)
    assert basics(TYPES.pair) * 2 == basics(TYPES.pairs) == d + i + d + i
    assert basics(TYPES.swapped) == i + d
    assert len({d + i, i + d, d + d + i, (d + i) * 2, (d + i) * 3, d * 2 + i * 2}) == 6
    assert (d + i) * 1000 == (d + i) * 501 + (d + i) * 499
    assert (d + i) * 0 == d * 0 == basics(MPI.DATATYPE_NULL)


def test_a_type_that_is_freed_leaves_nothing_to_the_next_one() -> None:
    for base in (MPI.FLOAT, MPI.INT, MPI.DOUBLE) * 3:
        made = base.Create_contiguous(3)
        assert basics(made) == basics(base) * 3
        made.Free()


# Descriptions of eight numbers from 0 as float32. Each describes memory that holds them in some
# order.
SAME: dict[str, tuple[Any, Any]] = {
    "array": (np.arange(8, dtype="f4"), None),
    "type": (np.arange(8, dtype="f4"), MPI.FLOAT),
    "bytes of memory": (bytearray(np.arange(8, dtype="f4").tobytes()), MPI.FLOAT),
    "Fortran's type": (np.arange(8, dtype="f4"), MPI.REAL),
    "derived": (np.arange(8, dtype="f4"), TYPES.four_floats["contiguous"]),
    "derived of derived": (np.arange(8, dtype="f4"), TYPES.four_floats["contiguous"].Dup()),
}


def memory_and_specification(name: str, mine: bool) -> tuple[Any, Any]:
    memory, datatype = SAME[name]
    memory = memory.copy()
    if not mine:
        np.frombuffer(memory, "f4")[:] = -1
    return memory, memory if datatype is None else [memory, datatype]


@pytest.mark.parametrize("root_has", SAME)
@pytest.mark.parametrize("others_have", SAME)
def test_descriptions_of_the_same_elements_fit(
    comm: gradred.Comm, root_has: str, others_have: str
) -> None:
    root = SIZE - 1
    name = root_has if root == RANK else others_have
    memory, specification = memory_and_specification(name, root == RANK)
    comm.Bcast(specification, root)
    assert (np.frombuffer(memory, "f4") == np.arange(8)).all()
    memory, specification = memory_and_specification(name, True)
    gathered = np.zeros((SIZE, 8), "f4")
    comm.Allgather(specification, gathered)
    assert (gathered == np.arange(8)).all()


@several
def test_a_column_fits_a_vector_and_a_pair_fits_a_structure(comm: gradred.Comm) -> None:
    column = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
    matrix, vector = np.arange(12.0).reshape(4, 3), np.zeros(4)
    comm.Bcast([matrix, 1, column] if RANK == 0 else vector)
    assert RANK == 0 or (vector == [0, 3, 6, 9]).all()
    column.Free()
    pair = np.dtype([("value", "f8"), ("index", "i4")], align=True)
    x = np.array([(1.5, 2), (2.5, 3)], pair) if RANK == 0 else np.zeros(2, pair)
    whole = TYPES.pair.Create_resized(0, 16)
    comm.Bcast([[x, 2, MPI.DOUBLE_INT], [x, 1, TYPES.pairs], [x, 2, whole]][RANK % 3])
    assert x["value"].tolist() == [1.5, 2.5]
    assert x["index"].tolist() == [2, 3]
    whole.Free()


@several
def test_names_of_one_type_and_empty_messages_fit(comm: gradred.Comm) -> None:
    for root_has, others_have in (("q", "l"), ("?", "?"), ("e", "e"), ("g", "g"), ("c8", "c8")):
        x = np.zeros(3, others_have)
        if RANK == 0:
            x = np.ones(3, root_has)
        comm.Bcast(x)
        assert (x == 1).all()
    memory: Any = bytearray(b"abc") if RANK == 0 else np.zeros(3, "u1")
    comm.Bcast(memory if RANK == 0 else [memory, MPI.PACKED if RANK == 1 else MPI.BYTE])
    assert bytes(memory) == b"abc"
    comm.Bcast(np.zeros(0, "f4" if RANK == 0 else "i4"))
    comm.Allgather(np.zeros(0, "f4" if RANK == 0 else "i4"), [None, 0, MPI.DOUBLE])


Described = tuple[int, str, str]

DIFFERENT: dict[str, tuple[Described, Described]] = {
    "type": ((4, "f4", ""), (4, "i4", "")),
    "type of another size": ((4, "f4", ""), (2, "f8", "")),
    "sign": ((4, "u4", ""), (4, "i4", "")),
    "count": ((4, "f4", ""), (5, "f4", "")),
    "bytes": ((4, "f4", ""), (16, "u1", "")),
    "bool and byte": ((4, "?", ""), (4, "u1", "")),
    "derived and another": ((4, "f4", "contiguous"), (4, "i4", "")),
    "order of mixed": ((2, "f8,i4", "pair"), (2, "f8,i4", "swapped")),
    "mixed and bytes": ((2, "f8,i4", "pair"), (24, "u1", "")),
    "long double and bytes": ((2, "g", ""), (32, "u1", "")),
}


def described(count: int, dtype: str, name: str, blocks: int = 1) -> tuple[Any, Any]:
    """An array, and its specification by the type of that name."""
    x = np.ones(count * blocks, np.dtype(dtype, align=True))
    if not name:
        return x, x
    datatype = {"pair": TYPES.pair, "swapped": TYPES.swapped, **TYPES.four_floats}[name]
    return x, [x, datatype]


@several
@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("call", ["Bcast", "Allgather", "Allgather in place"])
@pytest.mark.usefixtures("usable")
def test_other_elements_are_refused_on_every_rank(
    comm: gradred.Comm, what: str, turned: bool, call: str
) -> None:
    mine = DIFFERENT[what][(RANK == 0) == turned]
    x, one = described(*mine)
    _, all_of = described(*mine, blocks=SIZE)
    before = x.tobytes()
    calls = {
        "Bcast": lambda: comm.Bcast(one),
        "Allgather": lambda: comm.Allgather(one, all_of),
        "Allgather in place": lambda: comm.Allgather(MPI.IN_PLACE, all_of),
    }
    with pytest.raises(UsageError, match="disagree"):
        calls[call]()
    assert x.tobytes() == before


@pytest.mark.usefixtures("usable")
def test_gathering_into_another_type_is_refused(comm: gradred.Comm) -> None:
    x, y = np.ones(4, "f4"), np.zeros(4 * SIZE, "i4")
    with pytest.raises(UsageError, match="4 float32, a block of recvbuf 4 int32"):
        comm.Allgather(x, y)
    with pytest.raises(UsageError, match="4 float32, a block of recvbuf 2 float64"):
        comm.Allgather(x, np.zeros(2 * SIZE))
    assert (y == 0).all()
