"""Callbacks of operations in flight: each is called once, by which thread, and what it may do."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi.knobs import use
from mpi4py import MPI

import gradred

WORLD = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = WORLD.rank, WORLD.size
TOTAL = SIZE * (SIZE + 1) // 2
TOO_LONG = 30  # limit in seconds

needs_threads = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the MPI is below THREAD_MULTIPLE"
)
pytestmark = [needs_threads, pytest.mark.timeout(120)]


class Seen:
    """A callback that records the thread and the arguments of each call."""

    def __init__(self, then: Callable[[Any], Any] = lambda request: None) -> None:
        self.requests: list[Any] = []
        self.threads: list[int] = []
        self.error: BaseException | None = None
        self.called = threading.Event()
        self._then = then

    def __call__(self, request: Any) -> None:
        self.requests.append(request)
        self.threads.append(threading.get_ident())
        try:
            self._then(request)
        except BaseException as error:
            self.error = error
        self.called.set()

    def wait(self) -> None:
        """Wait until it has returned; asserts that it did not raise."""
        assert self.called.wait(TOO_LONG), "the callback has not been called"
        assert self.error is None, self.error


@contextlib.contextmanager
def made(path: str) -> Iterator[gradred.Comm]:
    """A communicator whose operations use this transport."""
    if path == "one rank":
        comm = gradred.Comm(MPI.COMM_SELF.Dup())
    else:
        use(shm=path != "messages")
        comm = gradred.Comm(MPI.COMM_WORLD.Dup())
        if path != "the MPI":  # the MPI carries calls out until a blocking call
            comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
        use()
    yield comm
    comm.Free()


def start(comm: gradred.Comm, count: int = 3) -> tuple[gradred.Request, Any]:
    y = np.full(count, comm.rank + 1.0)
    request = comm.Iallreduce(MPI.IN_PLACE, y)
    assert isinstance(request, gradred.Request)
    return request, y


def right(comm: gradred.Comm, y: Any) -> bool:
    return bool((y == comm.size * (comm.size + 1) / 2).all())


PATHS = ["shared memory", "messages", "the MPI", "one rank"]
WAITS: dict[str, Callable[[gradred.Request], Any]] = {
    "Wait": lambda request: request.Wait(),
    "Test": lambda request: [time.sleep(0) for _ in iter(request.Test, True)],
    "MPI's Waitall": lambda request: MPI.Request.Waitall([request]),
    "gradred's Waitall": lambda request: gradred.Request.Waitall([request]),
    "nothing": lambda request: None,
}


@pytest.mark.parametrize("count", [3, 300_000])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wait", WAITS)
def test_callback_is_called_once_with_its_request_after_the_end(
    path: str, wait: str, count: int
) -> None:
    with made(path) as comm:
        request, y = start(comm, count)
        seen = Seen(lambda request: None if wait == "MPI's Waitall" else request.Wait())
        request.add_done_callback(seen)
        WAITS[wait](request)
        seen.wait()
        assert seen.requests == [request]
        assert seen.requests[0] is request
        assert right(comm, y)
        request.Wait()
        late = Seen()
        request.add_done_callback(late)
        assert late.threads == [threading.get_ident()]
        assert len(seen.requests) == 1


def test_what_cannot_be_called_is_refused_where_it_is_added() -> None:
    with made("shared memory") as comm:
        request, y = start(comm)
        arrays = gradred.iallreduce(np.ones(2), comm=comm)
        for each in (request, arrays):
            with pytest.raises(TypeError, match=r"3 cannot be called\. Pass a function"):
                each.add_done_callback(3)  # type: ignore[arg-type]
        request.Wait()
        assert right(comm, y)
        assert (arrays.wait() == SIZE).all()


@pytest.mark.skipif(SIZE == 1, reason="operations of one rank end at once")
def test_wait_of_the_request_has_called_its_callbacks_in_their_order() -> None:
    with made("shared memory") as comm:
        for turn in range(20):
            is_late = turn % SIZE == RANK  # the operation cannot end before this rank comes
            if is_late:
                MPI.COMM_WORLD.Barrier()
            request, _ = start(comm)
            order: list[int] = []
            if is_late:
                request.Wait()
                continue
            for i in range(5):
                request.add_done_callback(lambda _, i=i, order=order: order.append(i))
            MPI.COMM_WORLD.Barrier()
            request.Wait()
            deadline = time.monotonic() + TOO_LONG
            while len(order) < 5 and time.monotonic() < deadline:
                time.sleep(0.001)  # another thread has found the end, and calls them
            assert order == [0, 1, 2, 3, 4]


def test_what_a_callback_raises_goes_to_the_hook_and_disturbs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: raised.append((it.exc_value, it.object)))

    def fails(request: gradred.Request) -> None:
        raise KeyError("mine")

    with made("shared memory") as comm:
        request, y = start(comm)
        seen = Seen()
        request.add_done_callback(fails)
        request.add_done_callback(seen)
        request.Wait()
        seen.wait()
        request.add_done_callback(fails)
        assert right(comm, y)
    assert [(type(error), where) for error, where in raised] == [(KeyError, fails)] * 2


@pytest.mark.parametrize("path", ["shared memory", "messages", "the MPI"])
def test_callback_starts_operations_and_waits_for_them(path: str) -> None:
    with made(path) as first, made(path) as second, made("shared memory") as third:
        results = []

        def more(_: Any) -> None:
            for count in (3, 100_000):
                request, y = start(second, count)
                request.Wait()
                results.append(right(second, y))
            y = np.full(7, RANK + 1.0)
            third.Allreduce(MPI.IN_PLACE, y)
            results.append(right(third, y))

        request, y = start(first)
        seen = Seen(more)
        request.add_done_callback(seen)
        request.Wait()
        seen.wait()
        assert right(first, y)
        assert results == [True] * 3


@pytest.mark.skipif(SIZE == 1, reason="one rank waits for nobody")
def test_callback_is_called_while_the_program_is_in_a_blocking_call() -> None:
    """Rank 0 blocks until its callback has sent the message for which the others wait."""
    with made("shared memory") as first, made("shared memory") as second:
        token = np.ones(1)

        def release(_: Any) -> None:
            for peer in range(1, SIZE):
                MPI.COMM_WORLD.Send(token, peer, tag=9)

        request, _ = start(first)
        seen = Seen(release if RANK == 0 else lambda _: None)
        request.add_done_callback(seen)
        if RANK != 0:
            MPI.COMM_WORLD.Recv(token, 0, tag=9)
        y = np.full(3, RANK + 1.0)
        second.Allreduce(MPI.IN_PLACE, y)
        request.Wait()
        seen.wait()
        assert right(second, y)


@pytest.mark.skipif(SIZE == 1, reason="operations of one rank end at once")
def test_operations_go_on_while_a_callback_waits_for_something_else() -> None:
    """No thread waits for the second operation; its end releases the callback of the first."""
    with made("shared memory") as first, made("messages") as second:
        event = threading.Event()
        one, _ = start(first)
        blocked = Seen(lambda _: event.wait(TOO_LONG) or pytest.fail("nobody drives"))
        other, _ = start(second, 200_000)
        operation = other._operation  # None: it has ended already, as the peer was early

        def release() -> None:
            while operation is not None and not operation.ended:
                time.sleep(0.001)
            event.set()

        waiting = threading.Thread(target=release)
        waiting.start()
        one.add_done_callback(blocked)
        one.Wait()
        blocked.wait()
        waiting.join()
        other.Wait()


def test_hundreds_of_callbacks_that_each_wait_for_operations_of_their_own() -> None:
    comms = [WORLD.Dup() for _ in range(8)]
    for comm in comms:
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    mine = [[comm.Dup() for _ in range(2)] for comm in comms]
    wrong: list[Any] = []
    left = threading.Semaphore(0)
    turns = 25

    def chain(comm: gradred.Comm, turn: int) -> Callable[[Any], None]:
        def again(request: gradred.Request) -> None:
            request.Wait()
            if turn == turns:
                left.release()
                return
            other, y = start(comm)
            other.Wait()
            if not right(comm, y):
                wrong.append((turn, y))
            request, _ = start(comm)
            request.add_done_callback(chain(comm, turn + 1))

        return again

    for several in mine:
        for comm in several:
            request, _ = start(comm)
            request.add_done_callback(chain(comm, 1))
    for _ in range(2 * len(mine)):
        assert left.acquire(timeout=TOO_LONG)
    assert not wrong
    for comm in [*comms, *(one for several in mine for one in several)]:
        comm.Free()


def test_each_of_many_callbacks_that_threads_add_is_called_once() -> None:
    with made("shared memory") as comm:
        for _ in range(10):
            request, _ = start(comm, 20_000)
            seen = [Seen() for _ in range(40)]

            def add(some: list[Seen], request: gradred.Request = request) -> None:
                for one in some:
                    request.add_done_callback(one)

            adders = [threading.Thread(target=add, args=(seen[i::4],)) for i in range(4)]
            for adder in adders:
                adder.start()
            request.Wait()
            for adder in adders:
                adder.join()
            for one in seen:
                one.wait()
                assert len(one.requests) == 1


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
@pytest.mark.parametrize("path", ["shared memory", "messages"])
def test_callback_of_a_failed_operation_learns_why(path: str) -> None:
    with made(path) as comm:
        y = np.zeros(3 if RANK else 4)
        request = comm.Iallreduce(MPI.IN_PLACE, y)
        assert isinstance(request, gradred.Request)

        errors: list[gradred.UsageError] = []

        def ask(request: gradred.Request) -> None:
            try:
                request.Wait()
            except gradred.UsageError as error:
                errors.append(error)

        seen = Seen(ask)
        request.add_done_callback(seen)
        ask(request)
        seen.wait()
        assert errors  # the rank that comes first
