"""What gradred's calls start is completed by all functions of the MPI, each request once."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import gradred
from gradred import UsageError

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
TOTAL = SIZE * (SIZE + 1) // 2

needs_thread_multiple = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the operation is the MPI's own"
)

COUNTS = (1, 0, 700, 60_000)


def array(count: int) -> Any:
    return np.full(count, RANK + 1.0)


def persistent(comm: gradred.Comm, count: int) -> MPI.Request:
    request = comm.Allreduce_init(MPI.IN_PLACE, array(count))
    request.Start()
    return request


# Each starts a call with so many elements.
STARTS: dict[str, Callable[[gradred.Comm, int], MPI.Request]] = {
    "Iallreduce": lambda comm, n: comm.Iallreduce(array(n), np.empty(n)),
    "in place": lambda comm, n: comm.Iallreduce(MPI.IN_PLACE, array(n)),
    "by specification": lambda comm, n: comm.Iallreduce(
        [array(n), MPI.DOUBLE], [np.empty(n), MPI.DOUBLE], "avg"
    ),
    "MINLOC": lambda comm, n: comm.Iallreduce(
        [np.zeros(n, "i,i"), MPI.INT_INT], [np.zeros(n, "i,i"), MPI.INT_INT], MPI.MINLOC
    ),
    "Ireduce_scatter_block": lambda comm, n: comm.Ireduce_scatter_block(
        array(n * comm.size), np.empty(n)
    ),
    "Iscan": lambda comm, n: comm.Iscan(array(n), np.empty(n)),
    "Iexscan": lambda comm, n: comm.Iexscan(array(n), np.empty(n)),
    "Iallgather": lambda comm, n: comm.Iallgather(array(n), np.empty(n * comm.size)),
    "Ibcast": lambda comm, n: comm.Ibcast(array(n)),
    "persistent": persistent,
}


def wait_any(requests: list[MPI.Request]) -> list[int] | None:
    index = MPI.Request.Waitany(requests)
    return None if index == MPI.UNDEFINED else [index]


def test_any(requests: list[MPI.Request]) -> list[int] | None:
    index, flag = MPI.Request.Testany(requests)
    if flag:
        return None if index == MPI.UNDEFINED else [index]
    return []


test_any.__test__ = False  # type: ignore[attr-defined]

COMPLETIONS = {
    "Waitany": wait_any,
    "Waitsome": MPI.Request.Waitsome,
    "Testany": test_any,
    "Testsome": MPI.Request.Testsome,
}


def indices(complete: Callable[[Any], list[int] | None], requests: list[MPI.Request]) -> list[int]:
    found: list[int] = []
    while (some := complete(requests)) is not None:
        found += some
        time.sleep(0)
    return found


def communicator(alone: bool, blocking_first: bool) -> gradred.Comm:
    comm = gradred.Comm((MPI.COMM_SELF if alone else MPI.COMM_WORLD).Dup())
    if blocking_first:
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    return comm


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("blocking_first", [True, False])
@pytest.mark.parametrize("how", COMPLETIONS)
def test_every_index_comes_once(how: str, blocking_first: bool, alone: bool) -> None:
    comm = communicator(alone, blocking_first)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for _ in range(5):
        requests = [comm.Irecv(np.empty(1), left), comm.Isend(array(1), right)]
        for count in COUNTS:
            requests += [start(comm, count) for start in STARTS.values()]
        requests.append(comm.Ibarrier())
        many = len(requests)
        assert sorted(indices(COMPLETIONS[how], requests)) == list(range(many))
    comm.Free()


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("how", STARTS)
def test_a_request_is_not_null_before_the_program_has_completed_it(how: str, alone: bool) -> None:
    comm = communicator(alone, blocking_first=True)
    for count in COUNTS:
        request = STARTS[how](comm, count)
        assert request
        assert request != MPI.REQUEST_NULL
        while not request.Get_status():
            time.sleep(0)
        if MPI.Get_version() >= (4, 1):
            fresh = [STARTS[how](comm, count) for _ in range(3)]
            while not MPI.Request.Get_status_all(fresh):
                time.sleep(0)
            MPI.Request.Waitall(fresh)
            assert MPI.Request.Get_status_all([request])
            assert MPI.Request.Get_status_any([request]) == (0, True)
            assert MPI.Request.Get_status_some([request]) == [0]
        assert request
        assert request.Wait()
        assert request.Wait()
        assert request.Test()
    comm.Free()


def test_a_wait_gives_the_empty_status() -> None:
    COMM.Allreduce(MPI.IN_PLACE, np.zeros(1))
    for wait in (MPI.Request.Wait, gradred.Request.Wait):
        status = MPI.Status()
        status.source, status.tag = 7, 8
        assert wait(COMM.Iallreduce(array(1), np.empty(1)), status)  # type: ignore[operator]
        assert (status.source, status.tag) == (MPI.ANY_SOURCE, MPI.ANY_TAG)


COPIES: dict[str, Callable[[MPI.Request], MPI.Request]] = {
    "handle": lambda request: MPI.Request.fromhandle(MPI._handleof(request)),
    "Fortran's": lambda request: MPI.Request.f2py(request.py2f()),
    "object": MPI.Request,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("complete", ["Wait", "Test", "Get_status"])
def test_a_copied_handle_outlives_the_request(complete: str, how: str) -> None:
    COMM.Allreduce(MPI.IN_PLACE, np.zeros(1))
    y = np.empty(1)
    for _ in range(20):
        copied = COPIES[how](COMM.Iallreduce(array(1), y))
        others = [COMM.Iallreduce(array(1), np.empty(1)) for _ in range(3)]
        for other in others:
            other.Wait()
        while not getattr(copied, complete)():
            time.sleep(0)
        copied.Wait()
        assert copied == MPI.REQUEST_NULL
        assert y[0] == TOTAL


def test_a_request_of_the_mpi_keeps_its_buffers_alive() -> None:
    """mpi4py's own does not, for reductions."""
    x, y = np.zeros(10, "i,i"), np.zeros(10, "i,i")
    kept = weakref.ref(x), weakref.ref(y)
    request = COMM.Iallreduce([x, MPI.INT_INT], [y, MPI.INT_INT], MPI.MINLOC)
    del x, y
    assert kept[0]() is not None
    assert kept[1]() is not None
    request.Wait()


def test_a_freed_request_is_null_and_others_go_on() -> None:
    COMM.Allreduce(MPI.IN_PLACE, np.zeros(1))
    for _ in range(20):
        results = [np.empty(1) for _ in range(4)]
        requests = [COMM.Iallreduce(array(1), y) for y in results]
        requests[0].Free()
        requests[1].free()
        assert requests[0] == requests[1] == MPI.REQUEST_NULL
        requests[1].free()
        assert sorted(indices(wait_any, requests)) == [2, 3]
        assert [y[0] for y in results[2:]] == [TOTAL] * 2
        COMM.Allreduce(MPI.IN_PLACE, np.zeros(1))


def test_requests_that_are_never_waited_for_do_not_disturb_others() -> None:
    COMM.Allreduce(MPI.IN_PLACE, np.zeros(1))
    left = [COMM.Iallreduce(array(1), np.empty(1)) for _ in range(20)]
    for _ in range(20):
        COMM.Iallreduce(array(1), np.empty(1))
        y = np.empty(1)
        assert indices(wait_any, [COMM.Iallreduce(array(1), y)]) == [0]
        assert y[0] == TOTAL
    assert sorted(indices(wait_any, left)) == list(range(20))


@needs_thread_multiple
def test_threads_complete_their_requests_at_the_same_time() -> None:
    comms = [communicator(alone, blocking_first=True) for alone in (False, True, True)]
    ways = [*COMPLETIONS.values(), lambda requests: [r.Wait() for r in requests] and None]
    problems = []

    def work(comm: gradred.Comm) -> None:
        for turn in range(100):
            requests: list[Any] = [comm.Iallreduce(array(1), np.empty(1)) for _ in range(5)]
            complete = ways[turn % len(ways)]
            found = indices(complete, requests)
            if complete is not ways[-1] and sorted(found) != list(range(5)):
                problems.append((turn, found))

    threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    for comm in comms:
        comm.Free()


@needs_thread_multiple
@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_the_mpis_functions_raise_what_ended_an_operation_at_its_start() -> None:
    comm = communicator(alone=False, blocking_first=True)
    for late in range(20):
        if late % SIZE == RANK:
            time.sleep(0.002)  # the last rank finds at once that the counts differ
        request = comm.Iallreduce(array(1 + RANK), np.empty(1 + RANK))
        with pytest.raises(MPI.Exception):
            MPI.Request.Waitall([request])
        request = comm.Iallreduce(array(1 + RANK), np.empty(1 + RANK))
        with pytest.raises(UsageError):
            request.Wait()
        comm.Barrier()
    comm.Free()
