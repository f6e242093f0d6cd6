"""Requests of Comm: the MPI's functions take them, and they keep operands alive."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import gradred
import gradred.comm
from gradred import UsageError, _core

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
TOTAL = SIZE * (SIZE + 1) // 2


# At lower levels the MPI carries out what it can, with its own rules and errors.
needs_thread_multiple = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the operation is the MPI's own"
)


def test_iallreduce_is_an_mpi_request() -> None:
    x, y = np.full(3, RANK + 1), np.zeros(3, int)
    request = COMM.Iallreduce(x, y)
    assert isinstance(request, MPI.Request)
    assert request.Wait()
    assert y.tolist() == [TOTAL] * 3
    assert request.Wait()  # a completed request is null, as in MPI
    assert request.Test()


@pytest.mark.parametrize("wait_all", [MPI.Request.Waitall, gradred.Request.Waitall])
def test_requests_mix_with_those_of_the_mpi(wait_all: Callable[[Any], Any]) -> None:
    results = [np.zeros(3, int) for _ in range(4)]
    mine, theirs = np.array([RANK]), np.zeros(1, int)
    requests: list[MPI.Request] = [COMM.Iallreduce(np.full(3, RANK + 1), y) for y in results]
    requests.insert(1, COMM.Isend(mine, (RANK + 1) % SIZE))
    requests.append(COMM.Irecv(theirs, (RANK - 1) % SIZE))
    requests.append(COMM.Ibarrier())
    wait_all(requests)
    assert [y.tolist() for y in results] == [[TOTAL] * 3] * 4
    assert theirs[0] == (RANK - 1) % SIZE
    assert all(request == MPI.REQUEST_NULL for request in requests)


def test_test_becomes_true() -> None:
    y = np.full(3, RANK + 1)
    request = COMM.Iallreduce(MPI.IN_PLACE, y)
    while not request.Test():
        pass
    assert y.tolist() == [TOTAL] * 3


def test_buffers_outlive_a_forgotten_request() -> None:
    y = np.full(1000, RANK + 1)
    COMM.Iallreduce(np.full(1000, RANK + 1), y)
    COMM.Barrier()
    COMM.Iallreduce(np.zeros(1), np.zeros(1)).Wait()
    while _core.in_flight():
        COMM.Iprobe()
    assert y.tolist() == [TOTAL] * 1000


def test_requests_may_be_dropped_in_flight_while_garbage_is_collected() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)  # at any allocation of Python objects
    try:
        for _ in range(100):
            COMM.Iallreduce(MPI.IN_PLACE, np.ones(300))
            [[] for _ in range(3)]
    finally:
        gc.set_threshold(*thresholds)
    COMM.Allreduce(MPI.IN_PLACE, np.ones(1))


def test_memory_of_a_dropped_request_goes_once_others_have_been_started() -> None:
    x = np.ones(200_000)
    kept = weakref.ref(x)
    COMM.Iallreduce(MPI.IN_PLACE, x)
    del x
    COMM.Allreduce(MPI.IN_PLACE, np.ones(1))
    while _core.in_flight():  # the thread that ended it may not have recorded this yet
        time.sleep(0.001)
    for _ in range(5):
        COMM.Iallreduce(MPI.IN_PLACE, np.ones(1)).Wait()
    assert kept() is None


def test_an_operation_that_does_not_end_keeps_no_memory_of_later_ones() -> None:
    first, later = COMM.Dup(), COMM.Dup()
    for comm in (first, later):
        comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    if RANK == 0:
        first.Iallreduce(MPI.IN_PLACE, np.ones(5))  # the others come to it at the end
    kept = []
    for _ in range(200):
        x = np.full(600, 1.0)
        kept.append(weakref.ref(x))
        later.Iallreduce(MPI.IN_PLACE, x)
        gradred.iallreduce(x, out=x, comm=later)
        del x
        later.Allreduce(MPI.IN_PLACE, np.ones(1))
    assert sum(one() is not None for one in kept) <= 10
    if RANK != 0:
        first.Iallreduce(MPI.IN_PLACE, np.ones(5))
    first.Allreduce(MPI.IN_PLACE, np.ones(1))
    for comm in (first, later):
        comm.Free()


@pytest.mark.parametrize("status", [5, MPI.COMM_WORLD, MPI.INT])
def test_status_of_a_request_is_a_status(status: Any) -> None:
    request = COMM.Iallreduce(MPI.IN_PLACE, np.full(300_000, 1.0))
    if RANK == 0 and request:  # the operation is in flight
        with pytest.raises(TypeError):
            request.Wait(status)
    request.Wait(MPI.Status())


def test_calls_from_two_communicators_may_be_in_flight_together() -> None:
    other = COMM.Dup()
    a, b = np.full(2, RANK), np.full(2, RANK + 1)
    first, second = COMM.Iallreduce(MPI.IN_PLACE, a), other.Iallreduce(MPI.IN_PLACE, b)
    (first, second)[RANK % 2].Wait()
    (second, first)[RANK % 2].Wait()
    assert (a[0], b[0]) == (TOTAL - SIZE, TOTAL)
    other.Free()


@needs_thread_multiple
def test_persistent_allreduce_is_started_again_and_again() -> None:
    x, y = np.zeros(3), np.zeros(3)
    p = COMM.Allreduce_init(x, y)
    assert isinstance(p, gradred.PersistentAllreduce)
    assert isinstance(p, MPI.Prequest)
    assert p.Test()  # it was not started
    for i in range(6):
        x[:] = i
        if (i + RANK) % 2:
            p()
        else:
            p.Start()
            p.Wait()
        assert y.tolist() == [i * SIZE] * 3
    p.Free()
    with pytest.raises(UsageError, match="the request is freed"):
        p.Start()


def test_persistent_allreduce_completes_in_the_mpis_functions() -> None:
    x, y = np.full(3, RANK), np.zeros(3, int)
    p = COMM.Allreduce_init(x, y, op="max")
    for _ in range(3):
        y[:] = -1
        p.Start()
        MPI.Request.Waitall([p, COMM.Ibarrier()])
        assert y.tolist() == [SIZE - 1] * 3
    p.Free()


@pytest.mark.parametrize("startall", [MPI.Prequest.Startall, gradred.PersistentAllreduce.Startall])
def test_startall_starts_those_of_gradred_and_of_the_mpi(startall: Callable[[Any], None]) -> None:
    edge, halo = np.zeros(8), np.zeros(8)
    short, long, totals = np.zeros(2), np.zeros(60_000), (np.zeros(2), np.zeros(60_000))
    located = np.zeros(3, "i,i")
    requests = [
        COMM.Allreduce_init(short, totals[0]),
        COMM.Send_init(edge, (RANK + 1) % SIZE, 7),
        COMM.Allreduce_init(long, totals[1], MPI.MAX),
        COMM.Recv_init(halo, (RANK - 1) % SIZE, 7),
        COMM.Allreduce_init(MPI.IN_PLACE, [located, MPI.INT_INT], MPI.MAXLOC),  # the MPI's
    ]
    for step in range(1, 6):
        short[:] = long[:] = edge[:] = step + RANK
        startall(requests)
        MPI.Request.Waitall(requests)
        assert totals[0].tolist() == [step * SIZE + TOTAL - SIZE] * 2
        assert totals[1][-1] == step + SIZE - 1
        assert halo[0] == step + (RANK - 1) % SIZE
    for request in requests:
        request.Free()


def test_startall_of_the_mpis_requests_alone_is_the_mpis() -> None:
    data = np.full(3, RANK), np.zeros(3, int)
    requests = [
        COMM.Send_init(data[0], (RANK + 1) % SIZE, 9),
        COMM.Recv_init(data[1], (RANK - 1) % SIZE, 9),
    ]
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    assert data[1][0] == (RANK - 1) % SIZE
    for request in requests:
        request.Free()
    MPI.Prequest.Startall([])
    with pytest.raises(TypeError):
        MPI.Prequest.Startall([None])  # type: ignore[list-item]


@needs_thread_multiple
def test_persistent_allreduce_is_not_started_twice() -> None:
    p = COMM.Allreduce_init(MPI.IN_PLACE, np.zeros(2))
    p.Start()
    with pytest.raises(UsageError, match="started already"):
        p.Start()
    p.Wait()
    p.Free()


@pytest.mark.parametrize("kind", ["started", "persistent"])
def test_requests_leave_no_reference_to_their_type_and_take_none_away(kind: str) -> None:
    """mpi4py's own types release that reference themselves if it was built for the stable ABI."""
    comm = gradred.Comm(MPI.COMM_SELF)
    x = np.ones(1)
    make = comm.Iallreduce if kind == "started" else comm.Allreduce_init
    request = make(MPI.IN_PLACE, x)
    made = type(request)
    before = sys.getrefcount(made)
    for _ in range(100):
        request.Wait() if kind == "started" else request.Free()
        request = make(MPI.IN_PLACE, x)
    gc.collect()
    assert abs(sys.getrefcount(made) - before) < 10
    request.Wait() if kind == "started" else request.Free()
