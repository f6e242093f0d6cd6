"""comm.allreduce and comm.allgather of Python objects, most of which go by gradred."""

from __future__ import annotations

import fractions
from typing import Any

import numpy as np
import pytest
from mpi.knobs import use
from mpi4py import MPI

import gradred
from gradred import _core

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
COMM = gradred.Comm(WORLD)

# What each rank gives, short and long when pickled.
OBJECTS = [
    lambda rank: rank + 0.1,
    lambda rank: rank * 10**40,
    lambda rank: np.float64(rank) / 3,
    lambda rank: np.int32(rank),
    lambda rank: fractions.Fraction(rank, 7),
    lambda rank: f"{rank}" * (rank + 1),
    lambda rank: [rank] * rank,
    lambda rank: [rank, "x" * 300],
    lambda rank: "y" * (1000 if rank == 0 else 1),
    lambda rank: np.arange(100.0) + rank,
]


@pytest.mark.parametrize("make", OBJECTS)
def test_objects_are_gathered_in_the_order_of_ranks(make: Any) -> None:
    found = COMM.allgather(make(RANK))
    for rank, one in enumerate(found):
        assert type(one) is type(make(rank))
        assert np.array_equal(one, make(rank))


@pytest.mark.parametrize("make", OBJECTS)
def test_objects_are_added_as_mpi4py_adds_them(make: Any) -> None:
    found, theirs = COMM.allreduce(make(RANK)), WORLD.allreduce(make(RANK))
    assert type(found) is type(theirs)
    if isinstance(found, float):
        assert found == pytest.approx(theirs)
        assert len(set(WORLD.allgather(float(found).hex()))) == 1
    else:
        assert np.array_equal(found, theirs)


@pytest.mark.parametrize("op", [MPI.MAX, MPI.MIN, MPI.PROD, MPI.LOR, MPI.BXOR])
def test_operations_of_the_mpi(op: MPI.Op) -> None:
    assert COMM.allreduce(RANK + 3, op) == WORLD.allreduce(RANK + 3, op)


def test_places_of_the_largest_and_the_least() -> None:
    assert COMM.allreduce((RANK % 2, RANK), op=MPI.MAXLOC) == (min(1, SIZE - 1), min(1, SIZE - 1))
    assert COMM.allreduce((RANK % 2, RANK), op=MPI.MINLOC) == (0, 0)


def test_a_function_gets_the_objects_in_the_order_of_ranks() -> None:
    assert COMM.allreduce(f"{RANK}", op=lambda a, b: f"({a}{b})") == nested(SIZE)


def nested(size: int) -> str:
    text = "0"
    for rank in range(1, size):
        text = f"({text}{rank})"
    return text


def test_a_function_that_changes_its_arguments_changes_no_rank_s_own_object() -> None:
    def extend(a: list[int], b: list[int]) -> list[int]:
        a.extend(b)
        return a

    mine = [RANK]
    assert COMM.allreduce(mine, op=extend) == list(range(SIZE))
    assert mine == [RANK]


def test_an_error_of_the_operation_is_raised_and_the_next_call_is_right() -> None:
    if SIZE > 1:
        with pytest.raises(ZeroDivisionError):
            COMM.allreduce(0, op=lambda a, b: a // b)
    assert COMM.allreduce(1) == SIZE


def test_objects_of_ranks_without_common_memory_go_by_messages() -> None:
    use(shm=False)
    comm = COMM.Dup()
    comm.Allreduce(MPI.IN_PLACE, np.ones(1))  # reads the settings
    use()
    assert comm.allreduce(1) == SIZE
    assert comm.allgather("x" * 5000 * (RANK + 1)) == ["x" * 5000 * (n + 1) for n in range(SIZE)]
    comm.Free()


@pytest.mark.parametrize(
    ("own", "others", "gathers"),
    [
        (1, 1, True),
        (252, 252, True),
        (0, 253, True),  # short blocks may be empty
        (2 << 20, 2 << 20, True),
        (2 << 20, 100, SIZE < 3),  # of blocks of one length too many are empty
        ((64 << 20) + 1, 1, False),
    ],
)
def test_what_is_gathered_depends_on_all_lengths(own: int, others: int, gathers: bool) -> None:
    lengths = [own if rank == SIZE - 1 else others for rank in range(SIZE)]
    found = _core.gather_objects(COMM, bytes([RANK]) * lengths[RANK], 64 << 20)
    if SIZE == 1:
        gathers = own <= 64 << 20
    wanted = [bytes([rank]) * length for rank, length in enumerate(lengths)]
    assert found == (wanted if gathers else None)
    assert _core.gather_objects(COMM, None if RANK == 0 else b"x", 1) is None


@pytest.mark.parametrize("rank", {0, SIZE - 1})
def test_one_long_object_is_given_to_mpi4py_by_all(rank: int) -> None:
    mine = np.ones(3 << 20, "u1") if rank == RANK else None
    found = COMM.allgather(mine)
    assert [one is None for one in found] == [other != rank for other in range(SIZE)]
    assert found[rank].sum() == 3 << 20


def test_objects_on_one_rank_beside_bytes_on_another_are_an_error() -> None:
    if SIZE == 1:
        pytest.skip("one rank agrees with itself")
    gathered = np.zeros(256 * SIZE, "u1")
    with pytest.raises(gradred.UsageError):
        COMM.allreduce(1) if RANK == 0 else COMM.Allgather(np.zeros(256, "u1"), gathered)
    assert COMM.allreduce(1) == SIZE
