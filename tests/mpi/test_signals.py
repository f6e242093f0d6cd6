"""Signals that come during a call: handlers of the program's own run after it, as with mpi4py.

A handler that ran within the call would write to an array that some peers have read and others
have not, and the ranks would get different results.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray
from signalled import HandlerError, during

import gradred

pytestmark = pytest.mark.mpi(min_size=2)

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
WRITTEN = 1000.0

Array = NDArray[np.float64]
Call = Callable[[], Any]


def put(call: Callable[..., Any], x: Any, y: Array, **how: Any) -> Call:
    """A method of the communicator with two buffers, and its result."""

    def carry_out() -> Array:
        call(x, y, **how)
        return y

    return carry_out


def in_place(call: Callable[..., Any], x: Array) -> Call:
    def carry_out() -> Array:
        call(x)
        return x

    return carry_out


def persistent(comm: gradred.Comm, x: Array) -> Call:
    y = np.empty_like(x)
    made = comm.Allreduce_init(x, y)

    def carry_out() -> Array:
        made()
        return y

    return carry_out


# Calls that read x, an array of as many elements for each rank.
CALLS: dict[str, Callable[[gradred.Comm, Array], Call]] = {
    "Allreduce": lambda comm, x: put(comm.Allreduce, x, np.empty_like(x)),
    "specification": lambda comm, x: put(comm.Allreduce, [x, MPI.DOUBLE], np.empty_like(x)),
    "by name": lambda comm, x: put(comm.Allreduce, x, np.empty_like(x), op="avg"),
    "in place": lambda comm, x: in_place(lambda y: comm.Allreduce(MPI.IN_PLACE, y), x),
    "persistent": persistent,
    "Reduce_scatter_block": lambda comm, x: put(
        comm.Reduce_scatter_block, x, np.empty(x.size // SIZE)
    ),
    "Allgather": lambda comm, x: put(comm.Allgather, x, np.empty(SIZE * x.size)),
    "Scan": lambda comm, x: put(comm.Scan, x, np.empty_like(x)),
    "Bcast": lambda comm, x: in_place(comm.Bcast, x),
    "allreduce": lambda comm, x: lambda: gradred.allreduce(x, comm=comm),
    "plan": lambda comm, x: lambda: gradred.allreduce(x, comm=comm, plan="mpi"),
    "premul": lambda comm, x: lambda: gradred.allreduce(x, gradred.premul(2), comm=comm),
    "allreduce_many": lambda comm, x: lambda: np.array(gradred.allreduce_many([x, x], comm=comm)),
    "allgather": lambda comm, x: lambda: gradred.allgather(x, comm=comm),
    "gather": lambda comm, x: lambda: gradred.gather(x, comm=comm),
    "scan": lambda comm, x: lambda: gradred.scan(x, comm=comm),
}


@pytest.mark.parametrize("count", [1, 1000, 100_000])
@pytest.mark.parametrize("name", CALLS)
def test_handler_that_writes_to_the_input_changes_the_result_of_no_rank(
    comm: gradred.Comm, name: str, count: int
) -> None:
    def given() -> Array:
        return np.full(SIZE * count, RANK + 1.0)

    expected = np.copy(CALLS[name](comm, given())())
    x = given()
    result = during(CALLS[name](comm, x), lambda: x.put(-1, WRITTEN))
    if RANK == 0:  # the handler has run after the call
        assert x[-1] == WRITTEN
    if result is x and RANK == 0:
        result[-1] = expected[-1]
    np.testing.assert_array_equal(result, expected)


def test_handler_may_change_the_result_after_the_call(comm: gradred.Comm) -> None:
    x, y = np.ones(3), np.zeros(3)
    during(lambda: comm.Allreduce(x, y), lambda: y.fill(WRITTEN))
    assert y.tolist() == [SIZE if RANK else WRITTEN] * 3


def test_handler_may_make_a_call_of_its_own(comm: gradred.Comm) -> None:
    """As the others make it after theirs."""
    x, y = np.ones(3), np.zeros(3)
    during(lambda: comm.Allreduce(x, y), lambda: comm.Allreduce(y, x))
    if RANK:
        comm.Allreduce(y, x)
    assert x.tolist() == [SIZE**2] * 3


def leave() -> NoReturn:
    raise HandlerError


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize("count", [1, 1000, 100_000])
@pytest.mark.parametrize(
    "number",
    [signal.SIGUSR1, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)],
)
@pytest.mark.parametrize("form", ["blocking", "Wait", "Waitall"])
def test_exception_of_a_handler_is_raised_after_the_call(
    comm: gradred.Comm, form: str, number: int, count: int
) -> None:
    x, y = np.ones(count), np.zeros(count)

    def call() -> None:
        if form == "blocking":
            comm.Allreduce(x, y)
        elif form == "Wait":
            comm.Iallreduce(x, y).Wait()
        else:
            gradred.Request.Waitall([comm.Iallreduce(x, y)])

    if RANK == 0:
        with pytest.raises(HandlerError):
            during(call, leave, number)
    else:
        during(call, leave, number)
    assert (y == SIZE).all()
