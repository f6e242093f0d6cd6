"""Handlers of `MPI.Exception` match gradred's errors wherever mpi4py raises it for the mistake."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import gradred
from gradred.errors import UsageError, usage_error

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
OPEN_MPI = "Open MPI" in MPI.Get_library_version()

REDUCTIONS = [
    "Allreduce",
    "Iallreduce",
    "Allreduce_init",
    "Reduce_scatter_block",
    "Ireduce_scatter_block",
    "Scan",
    "Iscan",
    "Exscan",
    "Iexscan",
]


def call(comm: Any, method: str, send: Any, recv: Any = None, *more: Any) -> None:
    """Make a call of any kind, and wait for it."""
    first = (send,) if method.endswith("cast") else (send, recv)
    made = getattr(comm, method)(*first, *more)
    if made is not None:
        made.Wait()


def four() -> Any:
    return np.ones(4)


def of_freed(comm: Any, method: str) -> None:
    comm.Free()
    call(comm, method, four(), four())


def with_freed_op(comm: Any, method: str) -> None:
    op = MPI.Op.Create(lambda a, b, datatype: None)
    op.Free()
    call(comm, method, four(), four(), op)


def overlapping(comm: Any, method: str) -> None:
    x = np.zeros(5)
    begin = isinstance(comm, gradred.Comm)  # MPIs only see that both begin at one address
    call(comm, method, x[:4], x[begin:][:4])


Mistake = Callable[[Any, str], None]

IN_REDUCTIONS: dict[str, tuple[Mistake, int]] = {
    "no such operation of the type": (
        lambda comm, method: call(comm, method, four(), four(), MPI.BAND),
        MPI.ERR_OP,
    ),
    "no order of complex numbers": (
        lambda comm, method: call(comm, method, four() * 1j, four() * 1j, MPI.MAX),
        MPI.ERR_OP,
    ),
    "operation is null": (
        lambda comm, method: call(comm, method, four(), four(), MPI.OP_NULL),
        MPI.ERR_OP,
    ),
    "operation is freed": (with_freed_op, MPI.ERR_OP),
    "overlap": (overlapping, MPI.ERR_BUFFER),
}
ROOTS: dict[str, tuple[Mistake, int]] = {
    "root is negative": (lambda comm, method: call(comm, method, four(), None, -1), MPI.ERR_ROOT),
    "root is no rank": (
        lambda comm, method: call(comm, method, four(), None, comm.size),
        MPI.ERR_ROOT,
    ),
}
TYPES: dict[str, tuple[Mistake, int]] = {
    "type is null": (
        lambda comm, method: call(comm, method, [four(), 4, MPI.DATATYPE_NULL], [four(), 4, "d"]),
        MPI.ERR_TYPE,
    ),
}
EVERYWHERE: dict[str, tuple[Mistake, int]] = {"communicator is freed": (of_freed, MPI.ERR_COMM)}

CASES = [
    pytest.param(method, *case, id=f"{method}: {name}")
    for methods, mistakes in (
        (REDUCTIONS, IN_REDUCTIONS),
        (["Bcast", "Ibcast"], ROOTS | TYPES),
        ([*REDUCTIONS, "Allgather", "Bcast", "Ibcast"], EVERYWHERE),
    )
    for method in methods
    for name, case in mistakes.items()
]


def mpi_checks(method: str, kind: int) -> bool:
    """Return whether the MPI finds the mistake. Open MPI gathers on null communicators."""
    if kind == MPI.ERR_BUFFER and hasattr(MPI.Comm, "tohandle"):
        return False  # mpi4py 4.2 takes it for in place
    if not OPEN_MPI:
        return True
    if kind == MPI.ERR_BUFFER:
        return "allreduce" in method.lower()
    return kind != MPI.ERR_COMM or method != "Allgather"


@pytest.fixture
def comms() -> Iterator[list[MPI.Intracomm]]:
    """Communicators of gradred's and of mpi4py's, of this rank alone."""
    made = [gradred.Comm(MPI.COMM_SELF.Dup()), MPI.COMM_SELF.Dup()]
    for comm in made:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
    yield made
    for comm in made:
        comm.free()


@pytest.mark.parametrize(("method", "mistake", "kind"), CASES)
def test_error_is_of_the_class_that_the_mpi_gives_it(
    method: str, mistake: Mistake, kind: int, comms: list[MPI.Intracomm]
) -> None:
    for comm in comms:
        if not isinstance(comm, gradred.Comm) and not mpi_checks(method, kind):
            continue
        with pytest.raises(MPI.Exception) as error:
            mistake(comm, method)
        assert error.value.Get_error_class() == error.value.error_class == kind
        of_mpi = isinstance(comm, gradred.Comm) and method != "Ibcast"
        assert isinstance(error.value, UsageError) == of_mpi


def test_block_of_another_size_is_a_truncation() -> None:
    comm = gradred.Comm(MPI.COMM_SELF)
    with pytest.raises(MPI.Exception, match="a block of recvbuf 2") as error:
        comm.Allgather(four(), np.zeros(2))
    assert error.value.Get_error_class() == MPI.ERR_TRUNCATE


def test_wrong_use_of_a_persistent_request_is_an_error_of_the_request() -> None:
    request = gradred.Comm(MPI.COMM_SELF).Allreduce_init(four(), four())
    request.Start()
    for _ in range(2):  # it is started already, then it is freed
        with pytest.raises(MPI.Exception) as error:
            request.Start()
        assert error.value.Get_error_class() == MPI.ERR_REQUEST
        if request:
            request.Wait()
            request.Free()


@pytest.mark.skipif(SIZE == 1, reason="nobody to differ from")
@pytest.mark.parametrize(
    ("differing", "kind"),
    [
        (lambda comm: comm.Bcast(np.zeros(4 if RANK == 0 else 2)), MPI.ERR_TRUNCATE),
        (lambda comm: comm.Bcast(np.zeros(4, "d" if RANK == 0 else "f")), MPI.ERR_TRUNCATE),
        (lambda comm: comm.Allreduce(MPI.IN_PLACE, np.zeros(4 + RANK % 2)), MPI.ERR_TRUNCATE),
        (lambda comm: comm.Bcast(np.zeros(4), root=RANK % 2), MPI.ERR_ROOT),
        (
            lambda comm: comm.Allreduce(MPI.IN_PLACE, np.zeros(4), "max" if RANK % 2 else "sum"),
            MPI.ERR_OP,
        ),
        (
            lambda comm: comm.Scan(four(), four()) if RANK % 2 else comm.Allreduce(four(), four()),
            MPI.ERR_OTHER,
        ),
    ],
    ids=["count", "type", "count of a reduction", "root", "operation", "kind"],
)
def test_calls_that_differ_raise_errors_of_the_class_that_fits(
    differing: Callable[[gradred.Comm], None], kind: int
) -> None:
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    with pytest.raises(MPI.Exception) as error:
        differing(comm)
    assert isinstance(error.value, UsageError)
    assert error.value.Get_error_class() == kind
    comm.Free()


def test_error_has_all_that_errors_of_mpi4py_have() -> None:
    error: Any = usage_error("what, why, remedy", "ERR_ROOT")
    assert str(error) == error.Get_error_string() == error.error_string == "what, why, remedy"
    assert error.Get_error_code() == error.error_code == int(error) == MPI.ERR_ROOT
    assert error == MPI.ERR_ROOT
    assert isinstance(error, ValueError)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.error_class) == (type(error), str(error), MPI.ERR_ROOT)


def test_error_needs_no_mpi() -> None:
    program = (
        "import sys, pickle; from gradred.errors import *\n"
        "assert type(usage_error('why', 'ERR_ROOT')) is UsageError\n"
        f"copy = pickle.loads({pickle.dumps(usage_error('why', 'ERR_ROOT'))!r})\n"
        "assert type(copy) is UsageError and str(copy) == 'why', copy\n"
        "assert 'mpi4py.MPI' not in sys.modules\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
