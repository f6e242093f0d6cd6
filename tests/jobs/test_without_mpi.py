"""Communicators of processes that no MPI connects: `gradred.connect`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import mpi4py
import numpy as np
import pytest
from bounds import within

import gradred
from gradred import UsageError, launch
from gradred.named import NamedOperations
from gradred.observe import status

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]
LIMIT_S = 30


class Exchange:
    """An allgather of processes, by pipes to this one."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.context, self.size = context, size
        self.given: Any = context.Queue()
        self.taken: list[Any] = [context.Queue() for _ in range(size)]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            found = dict(self.given.get() for _ in range(self.size))
            for queue in self.taken:
                queue.put([found[rank] for rank in range(self.size)])


def run(size: int, work: Callable[..., None], *arguments: Any, **variables: str) -> list[int]:
    """The exit status of each process."""
    exchange = Exchange(size)
    said = exchange.context.SimpleQueue()
    processes = []
    os.environ.update(variables)
    try:
        for rank in range(size):
            words = (work, rank, size, exchange.given, exchange.taken[rank], said, arguments)
            processes.append(exchange.context.Process(target=_begin, args=words))
            processes[-1].start()
        for process in processes:
            process.join(LIMIT_S)
            process.kill()  # no effect if the process has ended
            process.join()
    finally:
        for name in variables:
            del os.environ[name]
    while not said.empty():
        print(said.get())
    return [process.exitcode or 0 for process in processes]


def _begin(
    work: Callable[..., None],
    rank: int,
    size: int,
    given: Any,
    taken: Any,
    said: Any,
    arguments: tuple[Any, ...],
) -> None:
    def allgather(mine: bytes) -> list[bytes]:
        given.put((rank, mine))
        found: list[bytes] = taken.get()
        return found

    try:
        work(rank, size, allgather, *arguments)
        from mpi4py import MPI

        assert MPI.Is_initialized() == (work is _over_mpi)
    except BaseException as error:
        said.put(f"rank {rank}: {type(error).__name__}: {error}")
        raise


def _every_kind(rank: int, size: int, allgather: Any) -> None:
    comm = gradred.connect(rank, size, allgather)
    total = size * (size + 1) // 2
    assert (comm.Get_rank(), comm.Get_size()) == (rank, size)
    for count in (0, 1, 7, 5000, 100_003, 3_000_000):
        x = np.full(count, rank + 1, np.int64)
        assert (gradred.allreduce(x, comm=comm) == total).all()
        y = np.empty_like(x)
        comm.Iallreduce(x, y).Wait()
        assert (y == total).all()
        assert (gradred.iallreduce(x, comm=comm).wait() == total).all()
    assert (gradred.allgather(np.array([rank]), comm=comm).ravel() == range(size)).all()
    z = np.full(5, rank, np.float32)
    comm.Bcast(z, root=size - 1)
    assert (z == size - 1).all()
    again = comm.Allreduce_init(np.full(10, rank + 1.0), sums := np.empty(10))
    for _ in range(3):
        again.Start()
        again.Wait()
        assert (sums == total).all()
    ended = threading.Event()
    comm.Iallreduce(np.ones(9), np.empty(9)).add_done_callback(lambda _: ended.set())
    assert ended.wait(10)
    copy = comm.Dup()
    assert (gradred.allreduce(np.ones(3, "float16"), comm=copy) == size).all()
    copy.Free()


def _named(rank: int, size: int, allgather: Any) -> None:
    comm = gradred.connect(rank, size, allgather)
    engine = NamedOperations(comm)
    names = [f"tensor {number}" for number in range(50)]
    arrays = {name: np.full(100, rank + 1, np.float32) for name in names}
    requests = []
    for name in names if rank % 2 == 0 else reversed(names):
        address = arrays[name].ctypes.data
        described = [(address, address, "float32", (100,))]
        requests.append(engine.submit("allreduce", name, described))
    for request in requests:
        request.wait(20)
    assert all((array == size * (size + 1) / 2).all() for array in arrays.values())
    engine.free()


def _errors(rank: int, size: int, allgather: Any) -> None:
    comm = gradred.connect(rank, size, allgather)
    with pytest.raises(UsageError, match="Barrier on a communicator of shared memory"):
        comm.Barrier()
    with pytest.raises(UsageError, match=r"not initialised.*MPI4PY_RC_INITIALIZE=0"):
        comm.Allreduce(np.zeros(3, np.longdouble), np.zeros(3, np.longdouble))
    with pytest.raises(UsageError, match="rank 1"):  # the ranks' arrays have different lengths
        gradred.allreduce(np.zeros(3 + (rank == 1)), comm=comm)
    assert (gradred.allreduce(np.ones(3), comm=comm) == size).all()


def _shown(rank: int, size: int, allgather: Any) -> None:
    comm = gradred.connect(rank, size, allgather)
    pids = gradred.allgather(np.array([os.getpid()]), comm=comm).ravel().tolist()
    if rank == size - 1:
        deadline = time.monotonic() + 20
        seen: dict[int, status.Rank] = {}
        while time.monotonic() < deadline:
            seen = {one.rank: one for one in status.ranks() if one.pid in pids}
            if all(seen[other].waits_s for other in range(rank) if other in seen):
                break
        assert {one.pid: one.rank for one in seen.values()} == {
            pid: number for number, pid in enumerate(pids)
        }
        assert {one.size for one in seen.values()} == {size}
        assert all(seen[other].missing == [rank] for other in range(rank)), seen
        assert all("_shown" in "".join(one.stack) for one in seen.values()), seen
    gradred.allreduce(np.ones(5), comm=comm)


def _reduce_for_ever(comm: gradred.Comm) -> None:
    while True:
        gradred.allreduce(np.ones(100_000), comm=comm)


def _lose(rank: int, size: int, allgather: Any) -> None:
    comm = gradred.connect(rank, size, allgather)
    gradred.allreduce(np.ones(3), comm=comm)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(gradred.PeerLost, match="rank 1"):
        _reduce_for_ever(comm)
    assert time.monotonic() - begin < within(5)
    left = comm.shrink()
    assert left.Get_size() == size - 1
    assert (gradred.allreduce(np.ones(3), comm=left) == size - 1).all()


def _fork_with_an_array(rank: int, size: int, allgather: Any) -> None:
    x = gradred.zeros(1_000_000)
    child = os.fork()
    if child != 0:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not x.any()
        mpi4py.rc.initialize = False  # this process is not a rank
        return
    status = 1
    try:
        comm = gradred.connect(rank, size, allgather)
        for turn in range(20):  # enough turns to try all data paths
            x.fill(rank + turn)
            gradred.allreduce(x, out=x, comm=comm)
            assert (x == sum(range(size)) + size * turn).all(), f"turn {turn}"
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def test_an_array_that_a_fork_has_made_private_is_not_its_parents() -> None:
    assert run(2, _fork_with_an_array) == [0, 0]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("work", [_every_kind, _named], ids=lambda work: work.__name__[1:])
def test_processes_need_no_mpi(size: int, work: Callable[..., None]) -> None:
    assert run(size, work) == [0] * size


def test_the_ranks_are_seen() -> None:
    assert run(3, _shown) == [0, 0, 0]


def test_errors_reach_all_and_the_communicator_goes_on() -> None:
    assert run(2, _errors) == [0, 0]


def test_a_rank_that_is_killed_is_lost_and_the_others_shrink() -> None:
    assert run(3, _lose) == [0, -signal.SIGKILL, 0]


def _refused(rank: int, size: int, allgather: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        gradred.connect(rank, size, allgather)
    assert "gradred run" in str(caught.value)


def _over_mpi(rank: int, size: int, allgather: Any) -> None:
    comm = gradred.connect(rank, size, allgather)
    assert (comm.Get_rank(), comm.Get_size()) == (rank, size)
    x = np.full(1000, rank + 1.0)
    assert (gradred.allreduce(x, comm=comm) == size * (size + 1) / 2).all()


def test_without_shared_memory_they_connect_by_mpi_if_it_needs_no_mpiexec() -> None:
    if launch.find_mpi().family == "Open MPI":
        assert run(2, _refused, "GRADRED_SHM is off", GRADRED_SHM="0") == [0, 0]
    else:
        assert run(3, _over_mpi, GRADRED_SHM="0") == [0, 0, 0]


def test_what_allgather_raises_or_returns_is_reported() -> None:
    def fail(mine: bytes) -> list[bytes]:
        raise OSError("the store is gone")

    with pytest.raises(OSError, match="the store is gone"):
        gradred.connect(0, 2, fail)
    with pytest.raises(UsageError, match="of 1 ranks"):
        gradred.connect(0, 2, lambda mine: [mine])
    with pytest.raises(UsageError, match="bytes where"):
        gradred.connect(0, 2, lambda mine: [mine, mine + b"x"])
    with pytest.raises(UsageError, match="rank 2 of 2"):
        gradred.connect(2, 2, lambda mine: [mine, mine])


def test_one_rank_is_enough() -> None:
    comm = gradred.connect(0, 1, lambda mine: [mine])
    assert gradred.allreduce(np.arange(3.0), comm=comm).tolist() == [0, 1, 2]
