"""MPI's progress rule: legal programs in which a rank must make progress while it waits here."""

import gc
import os
import pathlib
import resource
import threading
import time

import numpy as np
import pytest
from mpi import legal
from mpi.knobs import use
from mpi4py import MPI

import gradred
from gradred import config

pytestmark = pytest.mark.mpi(min_size=2)

LARGE = 8 << 20  # bytes; no MPI sends that much before the receiver has asked for it
COUNTS = [1, 1000, 1 << 20]


@pytest.fixture(name="comm")
def duplicated_world():
    """A communicator that no earlier test has set up."""
    plain = MPI.COMM_WORLD.Dup()
    yield gradred.Comm(plain)
    plain.Free()


def vector(comm, count):
    return np.full(count, comm.rank + 1, np.float32)


def expected(comm, count):
    return np.full(count, comm.size * (comm.size + 1) // 2, np.float32)


@pytest.mark.parametrize("count", COUNTS)
def test_isend_completes_while_its_sender_waits_in_allreduce(comm, count):
    x, y = vector(comm, count), np.empty(count, np.float32)
    message = np.full(LARGE, comm.rank, np.uint8)
    if comm.rank == 0:
        request = MPI.COMM_WORLD.Isend(message, dest=1)
        comm.Allreduce(x, y)
        request.Wait()
    else:
        if comm.rank == 1:
            MPI.COMM_WORLD.Recv(message, source=0)
            assert not message.any()
        comm.Allreduce(x, y)
    np.testing.assert_array_equal(y, expected(comm, count))


@pytest.mark.parametrize("count", COUNTS)
def test_issend_completes_while_its_sender_waits_in_allreduce(comm, count):
    x, y = vector(comm, count), np.empty(count, np.float32)
    token = np.zeros(1)
    if comm.rank == 0:
        request = MPI.COMM_WORLD.Issend(token, dest=1)
        comm.Allreduce(x, y)
        request.Wait()
    else:
        if comm.rank == 1:
            MPI.COMM_WORLD.Recv(token, source=0)
        comm.Allreduce(x, y)
    np.testing.assert_array_equal(y, expected(comm, count))


@pytest.mark.parametrize("count", COUNTS)
def test_ibcast_completes_while_its_root_waits_in_allreduce(comm, count):
    x, y = vector(comm, count), np.empty(count, np.float32)
    message = np.full(LARGE, comm.rank, np.uint8)
    request = MPI.COMM_WORLD.Ibcast(message, root=0)
    if comm.rank != 0:
        request.Wait()  # needs the root, which is already in allreduce
    comm.Allreduce(x, y)
    request.Wait()
    assert not message.any()
    np.testing.assert_array_equal(y, expected(comm, count))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.skipif(
    "Open MPI" in MPI.Get_library_version(),
    reason="Open MPI 5.0.11's MPI_Put over its UCX component hangs here with plain MPI as well",
)
def test_one_sided_access_completes_while_its_target_waits_in_allreduce(comm, count):
    x, y = vector(comm, count), np.empty(count, np.float32)
    memory = np.zeros(1 << 16)
    put = np.arange(1 << 16, dtype=np.float64)
    window = MPI.Win.Create(memory, memory.itemsize, comm=MPI.COMM_WORLD)
    if comm.rank == 1:
        window.Lock(0, MPI.LOCK_EXCLUSIVE)
        window.Put(put, 0)
        window.Unlock(0)  # completes at rank 0, which only waits
    comm.Allreduce(x, y)
    window.Free()
    if comm.rank == 0:
        np.testing.assert_array_equal(memory, put)
    np.testing.assert_array_equal(y, expected(comm, count))


@pytest.mark.parametrize(("need", "way"), legal.cases(full=False))
def test_every_way_of_waiting_drives_the_mpi(need, way):
    legal.go_through(need, way)


@pytest.mark.full
@pytest.mark.parametrize(("need", "way"), legal.cases(full=True))
def test_every_way_of_waiting_serves_every_need(need, way):
    legal.go_through(need, way)


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < MPI.COMM_WORLD.size, reason="the ranks share cores"
)
def test_rank_with_a_core_of_its_own_takes_no_naps_while_it_waits_for_messages(comm):
    use(shm=False, plan="recursive_doubling")
    comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    use()
    time.sleep(0.1 * (comm.rank == 0))
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    naps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    assert comm.rank == 0 or naps < 100


@pytest.mark.parametrize("nulls", [(1, 0), (0, 1), (2, 1)])
def test_waitall_of_the_mpi_takes_null_requests_beside_one_in_flight(comm, nulls):
    comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    over = comm.Iallreduce(MPI.IN_PLACE, np.ones(1))
    over.Wait()
    time.sleep(0.01 * comm.rank)
    y = vector(comm, 1 << 17)
    request = comm.Iallreduce(MPI.IN_PLACE, y)
    before, behind = nulls
    MPI.Request.Waitall([MPI.REQUEST_NULL] * before + [request] + [over] * behind)
    np.testing.assert_array_equal(y, expected(comm, 1 << 17))


def test_operation_over_messages_is_driven_at_once_beside_one_that_waits_for_memory(comm):
    """The progress thread sleeps until a peer writes to memory; a new operation must wake it."""
    comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    use(shm=False)
    other = gradred.Comm(MPI.COMM_WORLD.Dup())
    other.Allreduce(MPI.IN_PLACE, np.ones(1))
    use()
    took, at_once = [], False
    while not at_once and len(took) < 40:  # without the wake-up it would sleep 80 ms each time
        requests = [comm.Iallreduce(MPI.IN_PLACE, np.ones(1 << 16))] if comm.rank == 0 else []
        time.sleep(0.02)
        begin = time.perf_counter()
        requests.append(other.Iallreduce(MPI.IN_PLACE, np.ones(100)))
        operation = requests[-1]._operation
        while operation is not None and not operation.ended:
            time.sleep(0.001)
        took.append(time.perf_counter() - begin)
        MPI.COMM_WORLD.Barrier()
        if comm.rank > 0:
            requests.append(comm.Iallreduce(MPI.IN_PLACE, np.ones(1 << 16)))
        gradred.Request.Waitall(requests)
        at_once = MPI.COMM_WORLD.allreduce(took[-1] < 0.04, op=MPI.LAND)
    other.Free()
    assert at_once, took


@pytest.mark.parametrize("way", ["Allreduce", "Iallreduce, Wait", "Iallreduce, Test"])
def test_first_call_drives_the_mpi(way):
    legal.go_through("Irecv", way, first=True)


def by_waiting(comm, x):
    comm.Iallreduce(MPI.IN_PLACE, x, MPI.MAX).Wait()


def by_testing(comm, x):
    request = comm.Iallreduce(MPI.IN_PLACE, x, MPI.MAX)
    while not request.Test():
        pass


@pytest.mark.parametrize(
    "call",
    [lambda comm, x: comm.Allreduce(MPI.IN_PLACE, x, MPI.MAX), by_waiting, by_testing],
    ids=["Allreduce", "Wait", "Test"],
)
def test_rank_that_finds_all_its_peers_waiting_drives_the_mpi_now_and_then(comm, call):
    call(comm, np.zeros(1))
    token = np.ones(1)
    if comm.rank == 0:
        request = MPI.COMM_WORLD.Issend(token, dest=1)
    elif comm.rank == 1:
        request = MPI.COMM_WORLD.Irecv(token, source=0)
    for _ in range(150):
        arrived = np.zeros(1)
        if comm.rank == 0:
            arrived[0] = request.Test()
        elif comm.rank == 1:
            time.sleep(0.002)  # this rank is the last to come, and does not wait
        call(comm, arrived)
        if arrived[0]:
            break
    if comm.rank < 2:
        request.Wait()
    assert arrived[0], "rank 1 has made 150 calls, and its MPI has got on in none of them"


def test_calls_on_one_rank_alone_drive_the_mpi_now_and_then(tmp_path):
    flag = pathlib.Path(MPI.COMM_WORLD.bcast(str(tmp_path / "arrived"), root=0))
    alone, token = gradred.Comm(MPI.COMM_SELF), np.ones(1)
    if MPI.COMM_WORLD.rank == 0:
        MPI.COMM_WORLD.Ssend(token, dest=1)
        flag.touch()
    elif MPI.COMM_WORLD.rank == 1:
        request = MPI.COMM_WORLD.Irecv(token, source=0)
        deadline = time.monotonic() + 30
        while not flag.exists() and time.monotonic() < deadline:
            alone.Allreduce(MPI.IN_PLACE, np.ones(1))
        arrived = flag.exists()
        request.Wait()
        assert arrived
    MPI.COMM_WORLD.Barrier()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("send", ["Send", "Ssend"])
def test_first_iallreduce_starts_without_its_peers(comm, count, send):
    x, y = vector(comm, count), np.empty(count, np.float32)
    token = np.zeros(1)
    if comm.rank == 1:
        MPI.COMM_WORLD.Recv(token, source=0)
    request = comm.Iallreduce(x, y)
    if comm.rank == 0:
        getattr(MPI.COMM_WORLD, send)(token, dest=1)
    request.Wait()
    np.testing.assert_array_equal(y, expected(comm, count))


@pytest.mark.parametrize("make", ["Dup", "Create_group", "Split"])
def test_communicators_are_made_beside_a_first_iallreduce(make):
    """Open MPI's ranks number their communicators separately, and the numbers may differ."""
    kept = []
    for _ in range(3):
        if MPI.COMM_WORLD.rank == 0:
            kept += [MPI.COMM_SELF.Dup() for _ in range(3)]
        comm = gradred.Comm(MPI.COMM_WORLD.Dup())
        if MPI.COMM_WORLD.rank == 0:
            kept.append(MPI.COMM_SELF.Dup())
        parent = MPI.COMM_WORLD.Dup()
        arguments = {"Create_group": [parent.group]}.get(make, [])
        x, y = vector(comm, 1000), np.empty(1000, np.float32)
        if comm.rank == 0:
            request = comm.Iallreduce(x, y)
            kept.append(getattr(parent, make)(*arguments))
        else:
            kept.append(getattr(parent, make)(*arguments))
            request = comm.Iallreduce(x, y)
        request.Wait()
        np.testing.assert_array_equal(y, expected(comm, 1000))
        kept += [comm, parent]
    for one in kept:
        one.Free()


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg", gradred.premul(2.0)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_first_iallreduce_knows_what_the_mpi_does_not(comm, dtype, op):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    values = np.arange(1, comm.size + 1)
    total = {"sum": values.sum(), "prod": values.prod(), "min": 1, "max": comm.size}.get(
        op, values.mean() if op == "avg" else 2 * values.sum()
    )
    for count in (0, 1, 5000):
        x = np.full(count, comm.rank + 1, dtype)
        y, z = np.zeros(count, dtype), x.copy()
        requests = [comm.Iallreduce(x, y, op), comm.Iallreduce(MPI.IN_PLACE, z, op)]
        gradred.Request.Waitall(requests)
        assert (x == comm.rank + 1).all()
        assert (y == np.asarray(total, dtype)).all()
        assert (z == y).all()
    block = np.zeros(7, dtype)
    comm.Ireduce_scatter_block(np.full(7 * comm.size, comm.rank + 1, dtype), block, op).Wait()
    assert (block == np.asarray(total, dtype)).all()


@pytest.mark.parametrize("count", COUNTS)
def test_started_operations_of_two_communicators_may_cross(comm, count):
    other = gradred.Comm(MPI.COMM_WORLD.Dup())
    x = vector(comm, count)
    results = [np.empty(count, np.float32) for _ in range(2)]
    order = [(comm, results[0]), (other, results[1])]
    if comm.rank % 2:
        order.reverse()
    requests = [c.Iallreduce(x, y) for c, y in order]
    MPI.Request.Waitall(requests)
    for y in results:
        np.testing.assert_array_equal(y, expected(comm, count))
    other.Free()


def test_setting_up_one_communicator_does_not_hold_up_another(comm):
    other = gradred.Comm(MPI.COMM_WORLD.Dup())
    x, y = vector(comm, 1 << 22), np.empty(1 << 22, np.float32)
    small, result = np.ones(2), np.empty(2)
    request = comm.Iallreduce(x, y)
    if comm.rank == 0:  # sets up the second communicator while the large operation needs progress
        prepared = other.Allreduce_init(small, result)
        request.Wait()
    else:
        request.Wait()
        prepared = other.Allreduce_init(small, result)
    prepared()
    prepared.Free()
    assert result[0] == comm.size
    np.testing.assert_array_equal(y, expected(comm, 1 << 22))
    other.Free()


def test_waitall_takes_gradred_requests_mixed_with_others(comm):
    x, y = vector(comm, 1000), np.empty(1000, np.float32)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    arrived = np.empty(10)
    requests = [
        MPI.COMM_WORLD.Irecv(arrived, source=left),
        comm.Iallreduce(x, y),
        MPI.COMM_WORLD.Isend(np.full(10, float(comm.rank)), dest=right),
    ]
    MPI.Request.Waitall(requests)
    assert all(request == MPI.REQUEST_NULL for request in requests)
    np.testing.assert_array_equal(arrived, left)
    np.testing.assert_array_equal(y, expected(comm, 1000))


@pytest.mark.rank_per_core
def test_2100_communicators_one_after_the_other():
    x, y = np.ones(3), np.empty(3)
    for i in range(2100):
        comm = gradred.Comm(MPI.COMM_WORLD.Dup())
        if i % 2:
            comm.Allreduce(x, y)
        else:
            comm.Iallreduce(x, y).Wait()
        assert y[0] == comm.size
        comm.Free()


@pytest.mark.rank_per_core
def test_1100_communicators_at_once():
    """MPICH has 2,046 in all: gradred's duplicates must not halve what a program may have."""
    gc.collect()
    x, y = np.ones(3), np.empty(3)
    comms = []
    try:
        for _ in range(1100):
            comms.append(gradred.Comm(MPI.COMM_WORLD.Dup()))
            comms[-1].Allreduce(x, y)
            assert y[0] == MPI.COMM_WORLD.size
    finally:
        for comm in comms:
            comm.Free()


@pytest.mark.parametrize("op", ["sum", "avg", "premul"])
def test_communicator_is_freed_with_a_call_in_flight_that_the_mpi_carries_out(op):
    """Open MPI 5 crashes if its own calls are in flight on a communicator that is freed."""
    for turn in range(10):
        comm = gradred.Comm(MPI.COMM_WORLD).Dup()  # no blocking call has set it up
        x, y = np.full(1000 * comm.size, 2.0), np.zeros(1000)
        time.sleep(0.01 * ((comm.rank + turn) % comm.size))
        request = comm.Ireduce_scatter_block(x, y, gradred.premul(0.5) if op == "premul" else op)
        size = comm.size
        comm.Free()
        request.Wait()
        assert (y == {"sum": 2.0 * size, "avg": 2.0, "premul": 1.0 * size}[op]).all()


def test_call_started_while_another_thread_waits_goes_on_when_that_has_ended():
    """First the waiting thread advances all that is in flight, later the progress thread must."""
    config.set("shm", False)
    comm, other = (gradred.Comm(MPI.COMM_WORLD.Dup()) for _ in range(2))
    for one in comm, other:
        one.Allreduce(MPI.IN_PLACE, np.zeros(1))
    config.reset("shm")
    for _ in range(3):
        time.sleep(0.1)  # the progress thread falls asleep
        waiting = threading.Thread(target=lambda: other.Allreduce(MPI.IN_PLACE, np.zeros(1)))
        x, y = vector(comm, 50_000), np.empty(50_000, np.float32)
        if comm.rank != 1:
            waiting.start()
            time.sleep(0.05)
            request = comm.Iallreduce(x, y)
            waiting.join()
        else:
            time.sleep(0.2)
            waiting.start()
            waiting.join()
            request = comm.Iallreduce(x, y)
        MPI.Request.Waitall([request])
        np.testing.assert_array_equal(y, expected(comm, 50_000))
    comm.Free()
    other.Free()
