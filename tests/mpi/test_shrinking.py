"""Communicators that `shrink` makes, here of all ranks; for failures see tests/faults."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi.place import ON_ONE_HOST, WHY_NOT
from mpi4py import MPI

import gradred
from gradred import UsageError, schedules
from gradred.memory_comm import MemoryComm

pytestmark = pytest.mark.skipif(not ON_ONE_HOST, reason=WHY_NOT)
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
TOTAL = SIZE * (SIZE + 1) // 2
several = pytest.mark.skipif(SIZE < 2, reason="takes several ranks")


@pytest.fixture
def comm() -> Iterator[gradred.Comm]:
    sound = gradred.Comm(WORLD).Dup()
    made = sound.shrink()
    yield made
    made.free()
    WORLD.Barrier()
    sound.Free()


def test_a_sound_communicator_shrinks_to_all_ranks_and_stays_sound() -> None:
    sound = gradred.Comm(WORLD).Dup()
    for _ in range(3):
        made = sound.shrink()
        assert (made.rank, made.size) == (RANK, SIZE)
        for each in (sound, made, made.shrink()):
            y = np.full(3, RANK + 1)
            each.Allreduce(MPI.IN_PLACE, y)
            assert y.tolist() == [TOTAL] * 3
    sound.Free()


def test_it_is_a_comm_with_a_null_handle(comm: gradred.Comm) -> None:
    assert isinstance(comm, gradred.Comm)
    assert isinstance(comm, MPI.Intracomm)
    assert not hasattr(comm, "__dict__")
    assert comm.handle == MPI.COMM_NULL.handle
    assert comm
    assert comm != MPI.COMM_NULL
    assert operator.ne(MPI.COMM_NULL, comm)  # in this order, too
    assert comm != WORLD
    assert (comm.is_intra, comm.is_inter) == (True, False)
    assert f"rank {RANK} of {SIZE}" in repr(comm)
    assert str(SIZE) in comm.name


@pytest.mark.parametrize("count", [0, 1, 7, 5000, 100_003, 3_000_000])
@pytest.mark.parametrize("dtype", ["int64", "float32", ml_dtypes.bfloat16])
def test_results_are_those_of_any_comm(comm: gradred.Comm, count: int, dtype: Any) -> None:
    x = (np.arange(count) % 7 + RANK).astype(dtype)
    expected = gradred.allreduce(x, comm=WORLD, plan=None)
    for result in (
        gradred.allreduce(x, comm=comm),
        gradred.allreduce(x, comm=comm, plan="node"),
        gradred.allreduce_many([x, x[:1]], comm=comm)[0],
    ):
        assert result.tobytes() == expected.tobytes()
    y = np.empty_like(x)
    comm.Iallreduce(x, y).Wait()
    assert y.tobytes() == expected.tobytes()


@pytest.mark.parametrize("op", ["sum", "max", "avg", gradred.premul(0.5)])
@pytest.mark.parametrize("count", [2, 50_000])
def test_started_operations_equal_blocking_ones(comm: gradred.Comm, op: Any, count: int) -> None:
    x = np.arange(count * SIZE, dtype="float64") + RANK
    blocking, started = np.zeros_like(x), np.zeros_like(x)
    comm.Allreduce(x, blocking, op)
    requests = [comm.Iallreduce(x, started, op)]
    block, part = np.zeros(count), np.zeros(count)
    comm.Reduce_scatter_block(x, block, op)
    requests.append(comm.Ireduce_scatter_block(x, part, op))
    gradred.Request.Waitall(requests)
    assert started.tobytes() == blocking.tobytes()
    assert part.tobytes() == block.tobytes()
    p = comm.Allreduce_init(x, started, op)
    for turn in range(4):
        started[:] = 0
        if (turn + RANK) % 2:
            p()
        else:
            p.Start()
            p.Wait()
        assert started.tobytes() == blocking.tobytes()
    p.Free()


@pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="requests of the MPI's need THREAD_MULTIPLE"
)
def test_requests_complete_in_the_mpis_functions(comm: gradred.Comm) -> None:
    results = [np.zeros(count, int) for count in (3, 40_000, 5)]
    requests = [comm.Iallreduce(np.full(y.size, RANK + 1), y) for y in results]
    MPI.Request.Waitall([*requests, WORLD.Ibarrier()])
    assert all((y == TOTAL).all() for y in results)


def test_bcast_and_allgather_move_any_type(comm: gradred.Comm) -> None:
    x = np.full(9, float(RANK)).reshape(3, 3)
    column = MPI.DOUBLE.Create_vector(3, 1, 3).Commit()
    comm.Bcast([x, 1, column], SIZE - 1)
    assert x[:, 0].tolist() == [SIZE - 1] * 3
    column.Free()
    y = np.zeros((SIZE, 2))
    comm.Allgather(np.full(2, float(RANK)), y)
    assert y[:, 0].tolist() == list(range(SIZE))


@several
@pytest.mark.parametrize("where", ["in shrink", "after"])
def test_a_rank_that_waits_lets_the_mpi_get_on_while_all_live(where: str) -> None:
    """Rank 0's message needs progress on rank 0, and rank 1 waits for it first."""
    sound = gradred.Comm(WORLD).Dup()
    sound.Allreduce(MPI.IN_PLACE, np.zeros(1))
    comm = sound.shrink() if where == "after" else None
    message = np.full(8 << 20, RANK, "u1")
    request = WORLD.Isend(message, 1) if RANK == 0 else MPI.REQUEST_NULL
    if RANK == 1:
        WORLD.Recv(message, 0)
        assert not message.any()
    comm = comm or sound.shrink()
    assert gradred.allreduce(np.ones(1), comm=comm)[0] == SIZE
    request.Wait()
    comm.Free()
    sound.Free()


SERVED = {
    *("Allreduce", "Iallreduce", "Allreduce_init", "Reduce_scatter_block"),
    *("Ireduce_scatter_block", "Scan", "Iscan", "Exscan", "Iexscan"),
    *("Allgather", "Bcast", "Free", "free", "handle"),
    *("Get_rank", "Get_size", "Get_name", "rank", "size", "name"),
    *("Is_inter", "Is_intra", "is_inter", "is_intra"),
    "Dup",
}


def test_a_duplicate_is_another_one_of_the_same_ranks(comm: gradred.Comm) -> None:
    other = comm.Dup()
    assert (other.rank, other.size) == (comm.rank, comm.size)
    assert other != comm
    assert gradred.allreduce(np.ones(1), comm=other)[0] == SIZE
    other.Free()
    assert gradred.allreduce(np.ones(1), comm=comm)[0] == SIZE
    with pytest.raises(UsageError, match="freed"):
        other.Dup()


def test_everything_of_the_mpis_own_is_refused(comm: gradred.Comm) -> None:
    """No call reaches the MPI with a null handle, whatever that MPI would do then."""
    tried = 0
    for name in dir(MPI.Intracomm):
        if name.startswith("_") or name in SERVED:
            continue
        with pytest.raises(
            UsageError, match=f"^{name} on a communicator of shared memory: .*restart"
        ):
            getattr(comm, name)()  # a property raises before the call
        tried += 1
    assert tried > 100
    assert gradred.allreduce(np.ones(1), comm=comm)[0] == SIZE


@pytest.mark.parametrize("plan", ["mpi", "ring"])
@several
def test_other_plans_are_refused_on_every_rank(comm: gradred.Comm, plan: str) -> None:
    with pytest.raises(UsageError, match="shared memory only"):
        gradred.allreduce(np.ones(2), comm=comm, plan=plan)
    assert gradred.allreduce(np.ones(1), comm=comm)[0] == SIZE


@several
def test_an_own_schedule_is_refused_with_the_reason(comm: gradred.Comm) -> None:
    def make(rank: int, size: int) -> schedules.Schedule:
        return schedules.make("ring", rank, size)

    with pytest.raises(UsageError, match="shared memory only"):
        gradred.allreduce(np.ones(3), plan=make, comm=comm)
    assert gradred.allreduce(np.ones(3), comm=comm).tolist() == [SIZE] * 3


def test_what_only_the_mpi_can_reduce_is_refused(comm: gradred.Comm) -> None:
    op = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
    x = np.ones(2)
    pairs = np.zeros(1, [("value", "f8"), ("index", "i4")])
    calls = [
        lambda: comm.Allreduce(MPI.IN_PLACE, x, op),
        lambda: comm.Iallreduce(MPI.IN_PLACE, x, op),
        lambda: comm.Allreduce_init(MPI.IN_PLACE, x, op),
        lambda: comm.Allreduce(MPI.IN_PLACE, np.ones(1, "longdouble")),
        lambda: comm.Allreduce(MPI.IN_PLACE, [pairs, 1, MPI.DOUBLE_INT], MPI.MINLOC),
        lambda: gradred.allreduce(x, op, comm=comm),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="shared memory"):
            call()
        assert gradred.allreduce(np.ones(1), comm=comm)[0] == SIZE
    op.Free()


@several
def test_ranks_that_disagree_get_an_error_and_go_on(comm: gradred.Comm) -> None:
    def started(send: Any, x: Any) -> None:
        comm.Iallreduce(send, x).Wait()

    for start in (False, True):
        for count in (2, 100_000):
            x = np.ones(count + RANK)
            call = started if start else comm.Allreduce
            with pytest.raises(UsageError):
                call(MPI.IN_PLACE, x)
            assert gradred.allreduce(np.ones(1), comm=comm)[0] == SIZE


def test_copies_share_the_communicator(comm: gradred.Comm) -> None:
    other = gradred.Comm(comm)
    assert type(other) is MemoryComm
    assert other == comm
    assert gradred.allreduce(np.ones(1), comm=other)[0] == SIZE
    other.Free()
    assert not comm
    for call in (lambda: comm.rank, lambda: gradred.allreduce(np.ones(1), comm=comm), comm.Free):
        with pytest.raises(UsageError, match="freed"):
            call()
    with pytest.raises(UsageError, match="freed"):
        gradred.allreduce(np.ones(1), comm=gradred.Comm(comm))


def test_it_cannot_be_pickled(comm: gradred.Comm) -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match="pickling"):
            attempt(comm)


def test_one_rank_alone_can_be_shrunk() -> None:
    comm = gradred.Comm(MPI.COMM_SELF).shrink()
    assert (comm.rank, comm.size) == (0, 1)
    y = np.zeros(3)
    comm.Iallreduce(np.ones(3), y).Wait()
    assert y.tolist() == [1, 1, 1]
    assert comm.shrink().size == 1
    with pytest.raises(UsageError, match="shared memory"):
        comm.Barrier()
