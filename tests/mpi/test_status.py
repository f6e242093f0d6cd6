"""The last operation that a rank began, as others see it: `gradred ps`, reports of timeouts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi.knobs import use
from mpi4py import MPI

import gradred
from gradred.observe import status

WORLD = MPI.COMM_WORLD

pytestmark = pytest.mark.skipif(WORLD.size == 1, reason="one rank waits for nobody")


@pytest.fixture(scope="module", params=["shared memory", "messages"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def comm(path: str) -> Iterator[gradred.Comm]:
    made = gradred.Comm(WORLD.Dup())
    if path == "messages":
        use(shm=False)
    made.Allreduce(MPI.IN_PLACE, np.zeros(1))
    use()
    yield made
    made.Free()


def shown() -> status.Rank:
    """This rank as others see it."""
    (rank,) = [one for one in status.ranks(stacks=False) if one.pid == os.getpid()]
    return rank


def leave_to_mpi(comm: Any, x: Any) -> None:
    own = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
    comm.Allreduce(x, np.empty_like(x), own)
    own.Free()


def refused(comm: Any, x: Any) -> None:
    with contextlib.suppress(gradred.UsageError):
        gradred.allreduce(x, "no such op", comm=comm)  # type: ignore[call-overload]


def call_again(comm: Any, x: Any) -> None:
    persistent = comm.Allreduce_init(x, np.empty_like(x))
    persistent()
    persistent.Free()


CALLS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "Allreduce": (
        lambda comm, x: comm.Allreduce(MPI.IN_PLACE, x),
        "allreduce of 5 float64 with sum, 40 bytes",
    ),
    "Iallreduce": (
        lambda comm, x: comm.Iallreduce(x, np.empty_like(x), MPI.MAX).Wait(),
        "allreduce of 5 float64 with max, 40 bytes",
    ),
    "Allreduce_init": (call_again, "allreduce of 5 float64 with sum, 40 bytes"),
    "large": (
        lambda comm, x: gradred.allreduce(np.ones(700_000, "int16"), comm=comm),
        "allreduce of 700000 int16 with sum, 1400000 bytes",
    ),
    "reduce_scatter_block": (
        lambda comm, x: gradred.reduce_scatter_block(np.ones(3 * comm.size, "int8"), comm=comm),
        "reduce_scatter_block of 3 int8 with sum, 3 bytes",
    ),
    "Bcast": (lambda comm, x: comm.Bcast(x), "bcast of 5 float64, 40 bytes"),
    "left to the MPI": (
        leave_to_mpi,
        "allreduce of a type or op that gradred leaves to the MPI",
    ),
    "refused": (refused, "a call with refused arguments"),
}


@pytest.mark.parametrize("name", CALLS)
def test_last_operation_is_shown_with_its_number(name: str, comm: Any, path: str) -> None:
    call, text = CALLS[name]
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    before = shown().operation
    call(comm, np.ones(5))
    after = shown()
    assert before is not None
    assert after.operation is not None
    # A persistent operation counts its own rounds.
    assert name == "Allreduce_init" or after.operation > before
    way = "" if path == "shared memory" else " over messages"
    assert after.last == f"operation {after.operation}{way} ({text})"
