"""What a collective call owes its peers when its own arguments are wrong: a word about it."""

from __future__ import annotations

import contextlib
from types import TracebackType

from mpi4py import MPI

from gradred import _core
from gradred.errors import Error, UsageError, explain


class refusing:  # noqa: N801 (a context, used like a function)
    """`with refusing(comm):` around all that looks at the arguments of a collective call.

    An error that leaves it counts as this rank's part in the call: the peers, which would wait for
    this rank, raise `UsageError` with its number and reason instead, and the communicator stays
    usable. The error itself goes on to the caller, except that the MPI's complaint about the
    communicator becomes a `UsageError`. Before MPI's beginning and after its end it raises
    `UsageError` at once.
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
            raise UsageError(message) from error
        if isinstance(error, Exception):
            # Where the peers cannot be told (a freed communicator, a lost peer) the first error
            # still says what the caller has to mend.
            with contextlib.suppress(Error):
                reason = str(error) or type(error).__name__
                _core.refuse(self._comm, reason, blocking=self._blocking)
