"""Fixtures of tests of ranks that disagree."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from mpi.knobs import use
from mpi4py import MPI
from stepped import SteppedClock

import gradred


@pytest.fixture(scope="session")
def stepped_clock() -> Iterator[SteppedClock]:
    """One clock for all ranks, which are processes of one machine."""
    world = MPI.COMM_WORLD
    own = SteppedClock() if world.rank == 0 else None
    made = own or SteppedClock(world.bcast(None, root=0))
    if own is not None:
        world.bcast(own.path, root=0)
    made.take()
    world.Barrier()
    yield made
    if own is not None:
        own.remove()


@pytest.fixture(scope="module", params=["shared memory", "messages"])
def comm(request: pytest.FixtureRequest) -> Iterator[gradred.Comm]:
    """A communicator after its first call."""
    made = gradred.Comm(MPI.COMM_WORLD.Dup())
    if request.param == "messages":
        use(shm=False)
    made.Allreduce(MPI.IN_PLACE, np.zeros(1))
    use()
    yield made
    made.Free()


@pytest.fixture
def usable(comm: gradred.Comm) -> Iterator[None]:
    """After the test, checks that `comm` still serves a call."""
    yield
    x = np.arange(1000.0) + comm.rank
    comm.Allreduce(MPI.IN_PLACE, x)
    assert (x == np.arange(1000.0) * comm.size + comm.size * (comm.size - 1) / 2).all()
