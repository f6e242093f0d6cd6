"""The forms of waiting for a request, one after the other on requests that reuse each other's.

If the program waits by gradred's functions the MPI is not notified of the end, and the next
operation reuses the request. A thread that waits for that one must not find the end of another.
"""

import random
import time

import numpy as np
import pytest
from mpi.knobs import use
from mpi4py import MPI

import gradred

pytestmark = pytest.mark.mpi(min_size=2)


def ask_until_true(requests):
    for request in requests:
        while not request.Test():
            pass


def wait_for_each(requests):
    for request in requests:
        request.Wait()


def let_the_mpi_test(requests):
    while not MPI.Request.Testall(requests):
        pass


def ask_once_and_leave_the_rest_to_the_mpi(requests):
    for request in requests:
        request.Test()
    MPI.Request.Waitall(requests)


WAYS = [
    ask_once_and_leave_the_rest_to_the_mpi,
    wait_for_each,
    ask_until_true,
    gradred.Request.Waitall,
    MPI.Request.Waitall,
    let_the_mpi_test,
]


@pytest.fixture(name="comm")
def duplicated_world():
    plain = MPI.COMM_WORLD.Dup()
    yield gradred.Comm(plain)
    plain.Free()


@pytest.mark.parametrize("count", [1, 30_000])
def test_each_rank_waits_in_ways_of_its_own(comm, count):
    own = random.Random(comm.rank)
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    for turn in range(200):
        if own.randrange(8) == 0:
            time.sleep(0.002)
        inputs = [np.full(count, comm.rank + turn + i, np.int64) for i in range(3)]
        results = [np.empty_like(x) for x in inputs]
        requests = [comm.Iallreduce(x, y) for x, y in zip(inputs, results, strict=True)]
        own.choice(WAYS)(requests)
        ranks = comm.size * (comm.size - 1) // 2
        for i, result in enumerate(results):
            np.testing.assert_array_equal(result, ranks + comm.size * (turn + i))
        assert not any(requests)  # null after any form of waiting


@pytest.mark.parametrize("plan", ["ring", "hierarchical"])
def test_long_and_short_calls_over_messages_are_waited_for_in_orders_of_each_rank(plan):
    """One of the calls is refused, and another blocks while they are in flight."""
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    use(plan=plan)
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))  # sets up the communicator
    use()
    own, common = random.Random(comm.rank), random.Random(7)
    for _ in range(3):
        lengths = [common.choice([1, 50, 30_000, 70_000, 200_000]) for _ in range(40)]
        given = [np.full(count, comm.rank + i, np.float32) for i, count in enumerate(lengths)]
        refused = common.randrange(40)
        given[refused] = given[refused].astype(np.int32 if comm.rank else np.float64)
        requests = [comm.Iallreduce(MPI.IN_PLACE, x) for x in given]
        before = np.full(3, comm.rank, np.float32)
        comm.Allreduce(MPI.IN_PLACE, before)
        ranks = comm.size * (comm.size - 1) // 2
        assert before.tolist() == [ranks] * 3
        for i in own.sample(range(40), 40):
            if i == refused:
                with pytest.raises(gradred.UsageError):
                    requests[i].wait()
                continue
            requests[i].wait()
            np.testing.assert_array_equal(given[i], ranks + comm.size * i)
    comm.Free()


@pytest.mark.parametrize("way", ["Wait", "Test"])
def test_status_says_that_nothing_was_received(comm, way):
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    x = np.ones(30_000)
    request = comm.Iallreduce(MPI.IN_PLACE, x)
    status = MPI.Status()
    status.Set_elements(MPI.BYTE, 17)
    while not getattr(request, way)(status):
        pass
    assert status.Get_count(MPI.BYTE) == 0
    assert not status.Is_cancelled()


def test_waitall_fills_a_status_for_each_request(comm):
    statuses = [MPI.Status()]
    first = statuses[0]
    requests = [comm.Iallreduce(MPI.IN_PLACE, np.ones(n)) for n in (1, 30_000, 3)]
    gradred.Request.Waitall(requests, statuses)
    assert len(statuses) == 3
    assert statuses[0] is first
    assert not any(status.Is_cancelled() for status in statuses)


def test_a_request_that_was_freed_is_waited_for_all_the_same(comm):
    """The MPI still holds it: no other operation may reuse it, and it completes."""
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    for turn in range(20):
        x = np.full(30_000, turn + comm.rank, np.int64)
        freed, other = comm.Iallreduce(MPI.IN_PLACE, x), comm.Ibarrier()
        freed.Free()
        assert not freed
        freed.Wait()
        np.testing.assert_array_equal(x, comm.size * turn + comm.size * (comm.size - 1) // 2)
        y = np.full(30_000, 1, np.int64)
        MPI.Request.Waitall([comm.Iallreduce(MPI.IN_PLACE, y), other])
        np.testing.assert_array_equal(y, comm.size)


@pytest.mark.parametrize("way", WAYS)
def test_waiting_for_a_stream_leaves_the_request_to_be_waited_for(comm, way):
    """For arrays in host memory the host waits, and the program retains the request."""
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    for turn in range(20):
        x = np.full(30_000, turn, np.int64)
        request = comm.Iallreduce(MPI.IN_PLACE, x)
        request.wait_stream(1)
        np.testing.assert_array_equal(x, comm.size * turn)
        way([request])
        assert not request
