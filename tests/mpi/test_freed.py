"""Nothing of a freed communicator is left that a later one could find."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

import gradred
from gradred import config
from gradred.schedules import Schedule, recv, send, work

WORLD = MPI.COMM_WORLD
RANK = WORLD.rank

pytestmark = pytest.mark.skipif(WORLD.size < 3, reason="a rank ends early while two go on")


def of_ranks(ranks: list[int]) -> MPI.Intracomm:
    world = WORLD.Get_group()
    group = world.Incl(ranks)
    made = WORLD.Create_group(group)
    group.Free()
    world.Free()
    return made


def chain(rank: int, size: int) -> Schedule:
    """A broadcast in which each rank sends to the next one."""
    rounds = [[recv(rank - 1, work(0))]] if rank > 0 else []
    rounds += [[send(rank + 1, work(0))]] if rank + 1 < size else []
    return Schedule(rounds, rank=rank, size=size, chunks=1, collective="bcast", name="chain")


@pytest.fixture
def unread_notice() -> Iterator[None]:
    """Rank 0 ends a call early.

    Rank 2 waits for rank 1, which is late, and asks rank 0, which never reads this notice.
    """
    config.set("shm", False)
    if RANK < 3:
        comm = gradred.Comm(of_ranks([0, 1, 2]))
        gradred.allreduce(np.ones(8), comm=comm, plan="ring")  # sets up
        if RANK == 1:
            time.sleep(0.2)
        gradred.bcast(np.ones(8), comm=comm, plan=chain)
        comm.Free()
    WORLD.Barrier()
    yield
    config.reset("shm")
    WORLD.Barrier()


@pytest.mark.usefixtures("unread_notice")
def test_a_later_communicator_of_fewer_ranks_serves_a_call_that_waits() -> None:
    if RANK > 1:
        return
    comm = gradred.Comm(of_ranks([0, 1]))
    for _ in range(2):
        assert (gradred.allreduce(np.ones(8), comm=comm, plan="ring") == 2).all()
        if RANK == 1:
            time.sleep(0.05)
    comm.Free()


@pytest.mark.usefixtures("unread_notice")
def test_no_communicator_of_the_program_finds_a_message_of_gradreds() -> None:
    if RANK > 1:
        return
    comms = [of_ranks([0, 1]) for _ in range(6)]
    found = [comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG) for comm in comms for _ in range(3)]
    for comm in comms:
        comm.Free()
    assert not any(found)
