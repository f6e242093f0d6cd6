"""Persistent calls belong together in the order in which they were made, not started."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi.knobs import use
from mpi.place import ON_ONE_HOST, WHY_NOT
from mpi4py import MPI

import gradred
from gradred import _core

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
OPEN_MPI = MPI.Get_library_version().startswith("Open MPI")
HINT = "mpi_assert_strict_persistent_collective_ordering"


@pytest.fixture
def comm() -> Iterator[gradred.Comm]:
    made = gradred.Comm(WORLD.Dup())
    yield made
    made.Free()


class Sum:
    """A persistent sum, whose result is unlike that of others and of other rounds."""

    def __init__(self, comm: gradred.Comm, number: int, count: int) -> None:
        self.number, self.x, self.y = number, np.zeros(count), np.zeros(count)
        self.request = comm.Allreduce_init(self.x, self.y)

    def fill(self, turn: int) -> None:
        self.x[:] = 1000 * self.number + turn + RANK

    def check(self, turn: int) -> None:
        expected = SIZE * (1000 * self.number + turn) + SIZE * (SIZE - 1) // 2
        assert (self.y == expected).all(), (expected, self.y)


@pytest.mark.parametrize("counts", [(4, 4), (4, 1000), (1, 0, 70_000, 70_000, 1)])
@pytest.mark.parametrize("complete", ["each", "other order", "MPI's Waitall", "gradred's Waitall"])
@pytest.mark.parametrize("start", ["Start", "Startall"])
def test_each_rank_starts_in_its_own_order(
    comm: gradred.Comm, start: str, complete: str, counts: tuple[int, ...]
) -> None:
    sums = [Sum(comm, number, count) for number, count in enumerate(counts)]
    draw = random.Random(RANK)
    for turn in range(20):
        order = draw.sample(sums, len(sums))
        for one in sums:
            one.fill(turn)
        if start == "Startall":
            MPI.Prequest.Startall([one.request for one in order])
        else:
            for one in order:
                one.request.Start()
        requests: list[Any] = [one.request for one in order]
        if complete == "other order":
            draw.shuffle(requests)
        if complete == "MPI's Waitall":
            MPI.Request.Waitall(requests)
        elif complete == "gradred's Waitall":
            gradred.Request.Waitall(requests)
        else:
            for request in requests:
                request.Wait()
        for one in sums:
            one.check(turn)
    for one in sums:
        one.request.Free()


def test_one_ends_before_the_other_starts(comm: gradred.Comm) -> None:
    """On rank 0 both are in flight, on the others one after the other."""
    p, q = Sum(comm, 1, 3), Sum(comm, 2, 3)
    for turn in range(20):
        p.fill(turn)
        q.fill(turn)
        if RANK == 0:
            p.request.Start()
            q.request.Start()
            p.request.Wait()
            q.request.Wait()
        else:
            q.request()
            p.request()
        p.check(turn)
        q.check(turn)
    p.request.Free()
    q.request.Free()


def test_other_calls_come_between(comm: gradred.Comm) -> None:
    p = Sum(comm, 1, 3)
    for turn in range(20):
        p.fill(turn)
        x, y = np.ones(2), np.ones(2)
        if (turn + RANK) % 2:
            p.request.Start()
            comm.Allreduce(MPI.IN_PLACE, x)
            started = comm.Iallreduce(MPI.IN_PLACE, y)
            p.request.Wait()
            started.Wait()
        else:
            comm.Allreduce(MPI.IN_PLACE, x)
            started = comm.Iallreduce(MPI.IN_PLACE, y)
            p.request()
            started.Wait()
        p.check(turn)
        assert x.tolist() == y.tolist() == [SIZE] * 2
    p.request.Free()


@pytest.mark.parametrize("complete", [MPI.Request.Waitall, gradred.Request.Waitall])
def test_an_inactive_request_is_not_null(comm: gradred.Comm, complete: Any) -> None:
    p, q = Sum(comm, 1, 3), Sum(comm, 2, 3)
    for turn in range(3):
        for one in (p, q):
            assert one.request
            assert one.request != MPI.REQUEST_NULL
            assert one.request != MPI.REQUEST_NULL
            assert one.request == one.request
            assert one.request.Test()
            one.fill(turn)
            one.request.Start()
            assert one.request
        assert p.request != q.request
        complete([p.request, q.request])
        p.check(turn)
        q.check(turn)
    for one in (p, q):
        one.request.Free()
        assert not one.request
        assert one.request == MPI.REQUEST_NULL
        assert one.request == MPI.REQUEST_NULL


def test_requests_outlive_their_communicator() -> None:
    comm = gradred.Comm(WORLD.Dup())
    sums = [Sum(comm, number, 3) for number in range(2)]
    comm.Free()
    for turn in range(4):
        for one in sums if RANK % 2 else sums[::-1]:
            one.fill(turn)
            one.request.Start()
        for one in sums:
            one.request.Wait()
            one.check(turn)
            one.request()
            one.check(turn)
    for one in sums:
        one.request.Free()


def test_requests_made_and_freed_in_turn_stay_apart(comm: gradred.Comm) -> None:
    """Each rank frees others first, so that other lanes are free on other ranks."""
    draw, own = random.Random(7), random.Random(RANK)
    alive: list[Sum] = []
    for turn in range(60):
        alive.append(Sum(comm, turn, draw.choice((1, 1, 900))))
        for one in own.sample(alive, len(alive)):
            one.fill(turn)
            one.request.Start()
        for one in alive:
            one.request.Wait()
            one.check(turn)
        if len(alive) > 4:
            leaving = draw.sample(alive, 3)
            for one in own.sample(leaving, 3):
                one.request.Free()
            alive = [one for one in alive if one not in leaving]
    for one in alive:
        one.request.Free()


def test_a_promise_of_one_order_is_enough_for_the_old_way() -> None:
    if len(HINT) > MPI.MAX_INFO_KEY:
        pytest.skip("this MPI knows no hints of that length")
    info = MPI.Info.Create({HINT: "true"})
    comm = gradred.Comm(WORLD.Dup(info))
    info.Free()
    sums = [Sum(comm, number, 3) for number in range(3)]
    for turn in range(3):
        for one in sums:
            one.fill(turn)
            one.request.Start()
        for one in sums:
            one.request.Wait()
            one.check(turn)
    for one in sums:
        one.request.Free()
    comm.Free()


@pytest.fixture(params=["messages", "the MPI", "no thread"])
def other_way(request: pytest.FixtureRequest) -> Iterator[gradred.Comm]:
    """A communicator whose started calls do not go through shared memory alone."""
    settings: dict[str, dict[str, Any]] = {
        "messages": {"shm": False, "plan": "recursive_doubling"},
        "the MPI": {"plan": "mpi"},
        "no thread": {"shm": False, "progress_thread": False},
    }
    made = gradred.Comm(WORLD.Dup())
    use(**settings[request.param])
    try:
        _core.prepare(made)
        yield made
    finally:
        use()
    made.Free()


def test_each_rank_starts_in_its_own_order_on_other_ways(other_way: gradred.Comm) -> None:
    """Shapes are equal or differ; some are started, some called; other calls come between."""
    sums = [Sum(other_way, number, count) for number, count in enumerate((4, 4, 900, 4, 30_000))]
    draw = random.Random(RANK)
    for turn in range(10):
        for one in sums:
            one.fill(turn)
        order = draw.sample(sums, len(sums))
        for one in order:
            one.request.Start()
        x = np.full(3, turn)
        other_way.Allreduce(MPI.IN_PLACE, x)
        assert x.tolist() == [SIZE * turn] * 3
        for one in draw.sample(sums, len(sums)):
            one.request.Wait()
        for one in sums:
            one.check(turn)
            one.fill(turn + 100)
        for one in sums:
            one.request()
            one.check(turn + 100)
    for one in sums:
        one.request.Free()


def test_types_that_the_mpi_lacks_start_in_any_order_too(other_way: gradred.Comm) -> None:
    x = np.full((3, 5), RANK + 1, np.float16) * np.array([[1], [2], [3]], np.float16)
    requests = [other_way.Allreduce_init(MPI.IN_PLACE, row) for row in x]
    order = [*requests] if RANK % 2 else requests[::-1]
    for request in order:
        request.Start()
    gradred.Request.Waitall(order)
    assert (x == SIZE * (SIZE + 1) // 2 * np.array([[1], [2], [3]])).all()
    for request in requests:
        request.Free()


def test_requests_outlive_their_communicator_on_other_ways(other_way: gradred.Comm) -> None:
    made = other_way.Dup()
    sums = [Sum(made, number, 3) for number in range(2)]
    if OPEN_MPI and sums[0].request._comm is None:
        pytest.skip("Open MPI's own requests crash once their communicator is freed")
    made.Free()
    for turn in range(3):
        for one in sums if RANK % 2 else sums[::-1]:
            one.fill(turn)
            one.request.Start()
        for one in sums:
            one.request.Wait()
            one.check(turn)
    for one in sums:
        one.request.Free()


def test_freed_requests_make_room_on_other_ways(other_way: gradred.Comm) -> None:
    """More requests one after another than there are tags, or communicators of the MPI."""
    for turn in range(100):
        sums = [Sum(other_way, number, 3) for number in range(3)]
        for one in sums if RANK % 2 else sums[::-1]:
            one.fill(turn)
            one.request.Start()
        for one in sums:
            one.request.Wait()
            one.check(turn)
            one.request.Free()


def proportional_kib() -> int:
    """Memory of this rank; what ranks share counts by halves, thirds, and so on.

    Without files: other programs' use of a library decides about its share in those.
    """
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        kinds = ("Pss_Anon:", "Pss_Shmem:")
        return sum(int(line.split()[1]) for line in lines if line.startswith(kinds))


@pytest.mark.skipif(not ON_ONE_HOST, reason=WHY_NOT)
@pytest.mark.parametrize("kib", [1, 8, 64])
def test_a_request_takes_memory_in_proportion_to_its_call(comm: gradred.Comm, kib: int) -> None:
    many, x = 40, np.ones(kib * 128)
    y = np.empty_like(x)
    for one in [comm.Allreduce_init(x, y) for _ in range(2)]:
        one()
    WORLD.Barrier()
    before = proportional_kib()
    requests = [comm.Allreduce_init(x, y) for _ in range(many)]
    for one in requests:
        one()
        one()
    WORLD.Barrier()
    taken = (proportional_kib() - before) / many
    WORLD.Barrier()
    for one in requests:
        one.Free()
    assert taken < 40 + 3 * kib, "KiB of this rank for each"


@pytest.mark.skipif(not ON_ONE_HOST, reason=WHY_NOT)
def test_freed_requests_leave_room_for_others_of_their_size_or_less(comm: gradred.Comm) -> None:
    draw, own = random.Random(3), random.Random(RANK)
    counts = (2, 300, 8_000, 16_000)

    def turn(number: int) -> None:
        sums = [Sum(comm, number, count) for count in draw.choices(counts, k=12)]
        for one in own.sample(sums, len(sums)):
            one.fill(number)
            one.request.Start()
        for one in sums:
            one.request.Wait()
            one.check(number)
        for one in own.sample(sums, len(sums)):
            one.request.Free()

    for number in range(20):
        turn(number)
    WORLD.Barrier()
    before = proportional_kib()
    for number in range(100):
        turn(number)
    WORLD.Barrier()
    assert proportional_kib() - before < 4096


@pytest.mark.parametrize("end", ["Wait", "Test"])
def test_thread_that_learns_late_of_a_round_leaves_the_next_one_alone(
    comm: gradred.Comm, end: str
) -> None:
    x, y = np.full(3, RANK + 1.0), np.zeros(3)
    p = comm.Allreduce_init(x, y)
    over = threading.Event()

    def wait_again_and_again() -> None:
        while not over.is_set():
            getattr(p, end)()

    second = threading.Thread(target=wait_again_and_again)
    second.start()
    for number in range(300):
        x[:] = RANK + number
        p.Start()
        p.Wait()
        assert (y == sum(range(number, number + SIZE))).all()
    over.set()
    second.join()
    p.Free()


@pytest.mark.parametrize("end", ["Wait", "Test"])
@pytest.mark.parametrize("persistent", [True, False])
def test_status_after_the_mpis_waitall_is_empty(
    comm: gradred.Comm, persistent: bool, end: str
) -> None:
    x, y, status = np.ones(3), np.zeros(3), MPI.Status()
    comm.Allreduce(x, y)
    p = comm.Allreduce_init(x, y) if persistent else None
    for _ in range(5):
        request = p if p is not None else comm.Iallreduce(x, y)
        if p is not None:
            p.Start()
        MPI.Request.Waitall([request])
        status.Set_source(7)
        assert getattr(request, end)(status)
        assert status.Get_source() == MPI.ANY_SOURCE
    if p is not None:
        p.Free()


@pytest.mark.skipif(not ON_ONE_HOST, reason=WHY_NOT)
def test_freed_rounds_leave_no_request_to_the_mpi(comm: gradred.Comm) -> None:
    x, y, handles = np.ones(3), np.zeros(3), set()
    use(progress_thread=False)
    for _ in range(12):
        p = comm.Allreduce_init(x, y)
        if RANK == SIZE - 1:
            WORLD.Barrier()  # all others have started, so this round ends at once
            p.Start()
            handles.add(MPI._handleof(p))
        else:
            p.Start()
            WORLD.Barrier()
            p.Wait()
        p.Free()
    use()
    assert len(handles) < 4
