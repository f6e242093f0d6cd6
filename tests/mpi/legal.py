"""Legal programs: while rank 0 waits in a call of gradred, rank 1 needs progress of rank 0's MPI.

A table of what rank 1 needs (`NEEDS`) and of the forms of waiting in gradred (`WAYS`). As a
program, `legal.py LEVEL`, it runs `cases` under an MPI that is initialised at that thread level.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np

if __name__ == "__main__":
    mpi4py.rc.thread_level = sys.argv[1]
    sys.path.insert(0, str(Path(__file__).parents[1]))

from mpi.place import ON_ONE_HOST
from mpi4py import MPI

import gradred

WORLD = MPI.COMM_WORLD
LARGE = 8 << 20  # bytes; no MPI sends that much before the receiver has asked for it
# elements: through shared memory, and over messages if the call is started
SHORT, LONG = 3, 300_000


@contextlib.contextmanager
def receive_posted() -> Iterator[None]:
    """Rank 1's Send ends once rank 0 receives the message."""
    message = np.zeros(LARGE, np.uint8)
    request = WORLD.Irecv(message, 1) if WORLD.rank == 0 else None
    if WORLD.rank == 1:
        WORLD.Send(np.ones(LARGE, np.uint8), 0)
    yield
    if request is not None:
        request.Wait()
        assert message.all()


def sending(start: str, elements: int) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Rank 1's Recv ends once rank 0 has sent all of the message."""

    @contextlib.contextmanager
    def need() -> Iterator[None]:
        message = np.full(elements, WORLD.rank == 0, np.uint8)
        request = getattr(WORLD, start)(message, 1) if WORLD.rank == 0 else None
        if WORLD.rank == 1:
            WORLD.Recv(message, 0)
            assert message.all()
        yield
        if request is not None:
            request.Wait()

    return need


@contextlib.contextmanager
def broadcast_started() -> Iterator[None]:
    """The others' Wait ends once rank 0 has passed the message on."""
    message = np.full(LARGE, WORLD.rank == 0, np.uint8)
    request = WORLD.Ibcast(message, 0)
    if WORLD.rank != 0:
        request.Wait()
        assert message.all()
    yield
    request.Wait()


@contextlib.contextmanager
def receive_posted_beside_a_message_to_itself() -> Iterator[None]:
    """Any probe of rank 0's MPI finds a message that no receive asks for."""
    ones = np.ones(1)
    alone = MPI.COMM_SELF.Isend(ones, 0) if WORLD.rank == 0 else None
    with receive_posted():
        yield
    if alone is not None:
        MPI.COMM_SELF.Recv(np.empty(1), 0)
        alone.Wait()


NEEDS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "Irecv": receive_posted,
    "Isend": sending("Isend", LARGE),
    "Issend": sending("Issend", 1),
    "Ibcast": broadcast_started,
    "Irecv beside a message": receive_posted_beside_a_message_to_itself,
}


def test_loop(request: MPI.Request) -> None:
    while not request.Test():
        pass


def wait_for_all(request: gradred.Request) -> None:
    gradred.Request.Waitall([request])


def wait_for_all_by_mpi(request: gradred.Request) -> None:
    MPI.Request.Waitall([request])


WAITS: dict[str, Callable[[Any], object]] = {
    "Wait": lambda request: request.Wait(),
    "Test": test_loop,
    "gradred.Request.Waitall": wait_for_all,
    "MPI.Request.Waitall": wait_for_all_by_mpi,
}


def summed(comm: gradred.Comm, y: Any) -> None:
    np.testing.assert_array_equal(y, comm.size * (comm.size + 1) / 2)


def started(
    wait: Callable[[Any], object], count: int, op: Any = MPI.SUM
) -> Callable[[gradred.Comm], None]:
    def call(comm: gradred.Comm) -> None:
        x, y = np.full(count, comm.rank + 1.0), np.empty(count)
        wait(comm.Iallreduce(x, y, op))
        summed(comm, y * (comm.size if op == "avg" else 1))

    return call


def persistent(wait: Callable[[Any], object]) -> Callable[[gradred.Comm], None]:
    def call(comm: gradred.Comm) -> None:
        x, y = np.full(SHORT, comm.rank + 1.0), np.empty(SHORT)
        p = comm.Allreduce_init(x, y)
        p.Start()
        wait(p)
        p.Free()
        summed(comm, y)

    return call


def persistent_call(comm: gradred.Comm) -> None:
    x, y = np.full(SHORT, comm.rank + 1.0), np.empty(SHORT)
    p = comm.Allreduce_init(x, y)
    p()
    p.Free()
    summed(comm, y)


def scattered(comm: gradred.Comm) -> None:
    x, y = np.full(SHORT * comm.size, comm.rank + 1.0), np.empty(SHORT)
    comm.Ireduce_scatter_block(x, y).Wait()
    summed(comm, y)


def blocking(count: int, plan: str | None = None) -> Callable[[gradred.Comm], None]:
    def call(comm: gradred.Comm) -> None:
        x = np.full(count, comm.rank + 1.0)
        summed(comm, gradred.allreduce(x, comm=comm, plan=plan))

    return call


def many(comm: gradred.Comm) -> None:
    arrays = [np.full(count, comm.rank + 1.0) for count in (1, 20, 5000)]
    for y in gradred.allreduce_many(arrays, comm=comm):
        summed(comm, y)


def shrinking(comm: gradred.Comm) -> None:
    """shrink() of a communicator without failures: all of its ranks."""
    blocking(SHORT)(comm.shrink())


WAYS: dict[str, Callable[[gradred.Comm], None]] = {
    "Allreduce": blocking(SHORT),
    "Allreduce, long": blocking(LONG),
    "Allreduce, ring": blocking(LONG, "ring"),
    **{f"Iallreduce, {name}": started(wait, SHORT) for name, wait in WAITS.items()},
    **{f"Iallreduce, long, {name}": started(wait, LONG) for name, wait in WAITS.items()},
    **{f"Iallreduce, avg, {name}": started(wait, SHORT, "avg") for name, wait in WAITS.items()},
    **{f"Allreduce_init, {name}": persistent(wait) for name, wait in WAITS.items()},
    "Allreduce_init, p()": persistent_call,
    "Ireduce_scatter_block": scattered,
    "allreduce_many": many,
    "shrink": shrinking,
    "shrunk, Allreduce": blocking(SHORT),
    **{f"shrunk, long, {name}": started(wait, LONG) for name, wait in WAITS.items()},
}


def ways() -> list[str]:
    """All forms of waiting, without shrink() on several hosts, where it is not possible."""
    return [way for way in WAYS if ON_ONE_HOST or not way.startswith("shr")]


def cases(full: bool) -> list[tuple[str, str]]:
    """Pairs of a need and a form of waiting: each of them once, or, if `full`, every pair."""
    if full:
        return [(need, way) for need in NEEDS for way in ways()]
    few = ("Allreduce", "Iallreduce, Wait", "Iallreduce, Test")
    return [("Irecv", way) for way in ways()] + [
        (need, way) for need in NEEDS if need != "Irecv" for way in few
    ]


def go_through(need: str, way: str, *, first: bool = False) -> None:
    """Run one program of the table; `first`: it is the first call on its communicator."""
    plain = WORLD.Dup()
    comm = gradred.Comm(plain)
    if not first:
        comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    used = comm.shrink() if way.startswith("shrunk") else comm
    with NEEDS[need]():
        WAYS[way](used)
    del used
    plain.Free()


if __name__ == "__main__":
    assert MPI.Query_thread() == getattr(MPI, f"THREAD_{sys.argv[1].upper()}")
    for need, way in cases(full=False):
        # there is no request below MPI_THREAD_MULTIPLE
        if way == "shrunk, long, MPI.Request.Waitall":
            continue
        go_through(need, way)
        print(f"rank {WORLD.rank}: {need}, {way}", flush=True)
