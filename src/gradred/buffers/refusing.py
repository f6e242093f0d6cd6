"""How a rank reports to its peers that its own arguments of a collective call are wrong."""

from __future__ import annotations

import contextlib
from types import TracebackType

from mpi4py import MPI

from gradred import _core
from gradred.errors import Error, explain, usage_error


class refusing:  # noqa: N801 (a context, used like a function)
    """`with refusing(comm):` goes around all code that checks the arguments of a collective call.

    An error that leaves the block counts as this rank's part in the call. The peers, which would
    wait for this rank, raise `UsageError` with its number and reason instead, and the communicator
    stays usable. The error itself propagates to the caller, except that the MPI's error about the
    communicator becomes a `UsageError`. Before MPI is initialised and after it is finalised the
    context raises `UsageError` immediately.
    """

    __slots__ = ("_blocking", "_comm")

    def __init__(self, comm: MPI.Comm, *, blocking: bool = True) -> None:
        self._comm = comm
        self._blocking = blocking

    def __enter__(self) -> None:
        _core.require_running_mpi(self._comm)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, MPI.Exception) and error.Get_error_class() == MPI.ERR_COMM:
            found = "it is null or has been freed"
            message = explain("a call on a communicator", found, "Use one that is alive")
            raise usage_error(message, "ERR_COMM") from error
        if isinstance(error, Exception):
            # If the report fails (a freed communicator, a lost peer), the first error propagates:
            # it says what the caller has to correct.
            with contextlib.suppress(Error):
                reason = str(error) or type(error).__name__
                _core.refuse(self._comm, reason, blocking=self._blocking)
