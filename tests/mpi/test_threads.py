"""Threads of a rank on separate communicators, and many operations in flight at once."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi import legal
from mpi.exact import differences, make_input, reduced
from mpi.knobs import use
from mpi4py import MPI

import gradred
from gradred import _core

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size

# Where ranks exceed cores a call costs milliseconds, and more with every rank.
OPERATIONS = 2000 if SIZE <= 2 else 1200 // SIZE**2

needs_threads = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the MPI is below THREAD_MULTIPLE"
)


class Worker(threading.Thread):
    """Runs a function and stores its exception."""

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        super().__init__(daemon=True)
        self.function, self.arguments = function, arguments
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.function(*self.arguments)
        except BaseException as error:
            self.error = error


def together(*workers: Worker) -> None:
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    errors = [worker.error for worker in workers if worker.error is not None]
    assert not errors, errors


def blocking(comm: gradred.Comm, count: int, times: int) -> None:
    x, y = np.zeros(count, "int64"), np.zeros(count, "int64")
    for turn in range(times):
        x[:] = turn + RANK
        comm.Allreduce(x, y)
        assert (y == turn * SIZE + SIZE * (SIZE - 1) // 2).all(), (turn, y[:3])


def starting(comm: gradred.Comm, count: int, times: int) -> None:
    x, y = np.zeros((4, count), "int64"), np.zeros((4, count), "int64")
    for turn in range(times // 4):
        x[:] = turn + RANK + np.arange(4)[:, None]
        requests = [comm.Iallreduce(x[i], y[i]) for i in range(4)]
        for request in requests if turn % 2 else reversed(requests):
            request.Wait()
        expected = (turn + np.arange(4)) * SIZE + SIZE * (SIZE - 1) // 2
        assert (y == expected[:, None]).all(), (turn, y[:, 0])


@needs_threads
@pytest.mark.parametrize("work", [blocking, starting], ids=["blocking", "non-blocking"])
def test_two_threads_on_two_communicators(work: Callable[..., None]) -> None:
    comms = [COMM.Dup(), COMM.Dup()]
    together(
        *(
            Worker(work, comm, count, OPERATIONS)
            for comm, count in zip(comms, (3, 700), strict=True)
        )
    )
    for comm in comms:
        comm.Free()


@needs_threads
def test_blocking_calls_of_one_thread_beside_started_ones_of_another() -> None:
    comms = [COMM.Dup(), COMM.Dup()]
    together(
        Worker(blocking, comms[0], 100, OPERATIONS // 4),
        Worker(starting, comms[1], 20_000, OPERATIONS // 4),
    )
    for comm in comms:
        comm.Free()


def until_inside(comm: MPI.Comm | None) -> None:
    """Return when another thread has begun a call on `comm` for which its peers are late."""
    assert comm is not None
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            _core.prepare_free(comm)
        except gradred.UsageError:
            return
        time.sleep(0.01)
    pytest.fail("the other thread has not come")


def calls_on(comm: gradred.Comm) -> dict[str, Callable[[], Any]]:
    """Every kind of call; each would match the next call on `comm`."""
    x, y, all_of_it = np.ones(4), np.zeros(4), np.zeros(4 * SIZE)
    own = MPI.Op.Create(lambda *_: None, commute=True)
    return {
        "Allreduce": lambda: comm.Allreduce(x, y),
        "Allreduce by name": lambda: comm.Allreduce(x, y, op="avg"),
        "Allreduce by an own operation": lambda: comm.Allreduce(x, y, op=own),
        "Allreduce of wrong arguments": lambda: comm.Allreduce(x, np.zeros(3)),
        "Iallreduce": lambda: comm.Iallreduce(x, y),
        "Iallreduce by name": lambda: comm.Iallreduce(x, y, op="avg"),
        "Allreduce_init": lambda: comm.Allreduce_init(x, y),
        "Reduce_scatter_block": lambda: comm.Reduce_scatter_block(all_of_it, y),
        "Allgather": lambda: comm.Allgather(x, all_of_it),
        "Bcast": lambda: comm.Bcast(x),
        "allreduce": lambda: gradred.allreduce(x, comm=comm),
        "allreduce_many": lambda: gradred.allreduce_many([x, x], comm=comm),
        "a plain communicator": lambda: gradred.allreduce(x, comm=MPI.Intracomm(comm)),
        "shrink": comm.shrink,
        "Free": comm.Free,
    }


@needs_threads
@pytest.mark.skipif(SIZE == 1, reason="one rank waits for nobody")
@pytest.mark.parametrize("shares_memory", [True, False])
def test_second_thread_on_a_communicator_is_refused_and_disturbs_nothing(
    shares_memory: bool,
) -> None:
    use(shm=shares_memory)
    comm = COMM.Dup()
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    use()
    calls = calls_on(comm)
    x, y = np.full(500, RANK + 1.0), np.zeros(500)
    early = np.full(3, RANK)
    request = comm.Iallreduce(MPI.IN_PLACE, early)
    first = Worker(lambda: comm.Allreduce(x, y))
    if RANK == 0:
        first.start()
        until_inside(comm)
        for name, call in calls.items():
            with pytest.raises(gradred.UsageError) as caught:
                call()
            says = "recvbuf 3" if "wrong" in name else "another thread"
            assert says in str(caught.value), (name, str(caught.value))
        request.Wait()  # this is not a call on the communicator
        COMM.Barrier()
        first.join()
    else:
        request.Wait()
        COMM.Barrier()
        first.run()
    assert first.error is None, first.error
    total = SIZE * (SIZE + 1) / 2
    assert (y == total).all()
    assert (early == total - SIZE).all()
    comm.Allreduce(MPI.IN_PLACE, y)
    assert (y == total * SIZE).all()
    comm.Free()


@needs_threads
@pytest.mark.parametrize("shares_memory", [True, False])
def test_persistent_call_in_another_thread_leaves_the_communicator_to_this_one(
    shares_memory: bool,
) -> None:
    use(shm=shares_memory)
    comm = COMM.Dup()
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    use()
    x, y, total = np.full(500, RANK + 1.0), np.zeros(500), np.ones(3)
    p = comm.Allreduce_init(x, y)
    for _ in range(20):
        y[:] = 0
        total[:] = 1
        waiting = Worker(p)
        if RANK == 0:
            waiting.start()
            comm.Allreduce(MPI.IN_PLACE, total)
            if SIZE > 1:
                until_inside(p._comm)
                for refused in (p, p.Start, p.Free):
                    with pytest.raises(gradred.UsageError, match="another thread"):
                        refused()
            COMM.Barrier()
            waiting.join()
        else:
            comm.Allreduce(MPI.IN_PLACE, total)
            COMM.Barrier()
            waiting.run()
        assert waiting.error is None, waiting.error
        assert (y == SIZE * (SIZE + 1) / 2).all()
        assert (total == SIZE).all()
    p.Free()
    comm.Free()


@pytest.mark.skipif(SIZE == 1, reason="operations of one rank end at once")
def test_operation_that_peers_do_not_start_holds_no_others_buffers() -> None:
    late, comm = COMM.Dup(), COMM.Dup()
    for one in (late, comm):
        one.Allreduce(MPI.IN_PLACE, np.zeros(1))
    mine = np.full(3, RANK)
    request = late.Iallreduce(MPI.IN_PLACE, mine) if RANK == 0 else None
    dropped = []
    for _ in range(200):
        y = np.full(10, RANK)
        dropped.append(weakref.ref(y))
        comm.Iallreduce(MPI.IN_PLACE, y)  # the program drops the request
        del y
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    alive = sum(one() is not None for one in dropped)
    if request is None:
        request = late.Iallreduce(MPI.IN_PLACE, mine)
    request.Wait()
    assert alive < 50
    assert (mine == SIZE * (SIZE - 1) // 2).all()
    late.Free()
    comm.Free()


@needs_threads
def test_waiting_in_one_thread_lets_another_run() -> None:
    """Rank 0 waits in Allreduce; only its second thread can release the others."""
    done = np.zeros(1)

    def release() -> None:
        for peer in range(1, SIZE):
            MPI.COMM_WORLD.Send(done, peer, tag=7)

    releasing = Worker(release)
    if RANK == 0:
        releasing.start()
    else:
        MPI.COMM_WORLD.Recv(done, 0, tag=7)
    y = np.ones(1)
    COMM.Allreduce(MPI.IN_PLACE, y)
    if RANK == 0:
        releasing.join()
        assert releasing.error is None
    assert y[0] == SIZE


@needs_threads
@pytest.mark.skipif(SIZE == 1, reason="one rank waits for nobody")
def test_threads_that_wait_together_drive_the_mpi() -> None:
    """On rank 0 both threads wait; only their progress can receive rank 1's message."""
    comms = [COMM.Dup() for _ in legal.WAITS]
    for comm in comms:
        comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    calls = [legal.started(wait, legal.SHORT) for wait in legal.WAITS.values()]
    with legal.NEEDS["Irecv"]():
        together(*(Worker(call, comm) for call, comm in zip(calls, comms, strict=True)))
    for comm in comms:
        comm.Free()


@needs_threads
def test_threads_may_meet_a_communicator_for_the_first_time_together() -> None:
    for _ in range(5):
        comms = [MPI.COMM_WORLD.Dup() for _ in range(3)]
        ones = [np.ones(2) for _ in comms]

        def first_call(comm: MPI.Intracomm, x: Any) -> None:
            gradred.Comm(comm).Allreduce(MPI.IN_PLACE, x)

        together(*(Worker(first_call, comm, x) for comm, x in zip(comms, ones, strict=True)))
        assert [x[0] for x in ones] == [SIZE] * 3
        for comm in comms:
            comm.Free()


@pytest.mark.parametrize("wait", [MPI.Request.Waitall, gradred.Request.Waitall])
def test_300_operations_in_flight(wait: Callable[[Any], Any]) -> None:
    counts = [(turn * 37) % 500 for turn in range(300)]
    inputs = [make_input(RANK, count, "int32") for count in counts]
    results = [np.zeros(count, "int32") for count in counts]
    requests = [COMM.Iallreduce(x, y) for x, y in zip(inputs, results, strict=True)]
    wait(requests)
    wrong: list[str] = []
    for turn, (count, y) in enumerate(zip(counts, results, strict=True)):
        wrong += differences(y, reduced(SIZE, count, "int32"), f"operation {turn}")
    assert not wrong
    deadline = time.monotonic() + 5
    while _core.in_flight() > 0 and time.monotonic() < deadline:
        # the MPI completes the request just before the engine removes the operation
        time.sleep(0.001)
    assert _core.in_flight() == 0


def test_blocking_calls_overtake_operations_in_flight() -> None:
    wrong: list[str] = []
    results = [np.zeros(5000, "float32") for _ in range(30)]
    requests = []
    x = make_input(RANK, 5000, "float32")
    for turn, y in enumerate(results):
        requests.append(COMM.Iallreduce(x, y))
        if turn % 3 == 0:
            small = make_input(RANK, 11, "int32")
            COMM.Allreduce(MPI.IN_PLACE, small)
            wrong += differences(small, reduced(SIZE, 11, "int32"), f"blocking call {turn}")
        if turn % 5 == 0:
            requests[turn // 2].Test()
    for request in requests[1::2] + requests[::2]:
        request.Wait()
    expected = reduced(SIZE, 5000, "float32")
    for turn, y in enumerate(results):
        wrong += differences(y, expected, f"operation {turn}")
    assert not wrong


def test_operations_of_several_communicators_end_in_any_order() -> None:
    comms = [COMM.Dup() for _ in range(5)]
    results = [np.full(300, RANK + turn) for turn in range(25)]
    requests = [comms[turn % 5].Iallreduce(MPI.IN_PLACE, y) for turn, y in enumerate(results)]
    order = np.random.default_rng(RANK).permutation(25)  # another order on each rank
    for turn in order:
        requests[turn].Wait()
    for turn, y in enumerate(results):
        assert (y == turn * SIZE + SIZE * (SIZE - 1) // 2).all()
    for comm in comms:
        comm.Free()
