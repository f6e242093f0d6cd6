"""Persistent allreduce: gradred checks the arguments once, then starts the call repeatedly."""

# ruff: noqa: N802 (MPI's own names)
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from mpi4py import MPI

from gradred import _core
from gradred.errors import explain, usage_error

if TYPE_CHECKING:

    class _Base(MPI.Prequest):
        """The members that the extension adds, for a fast `p()`."""

        def __call__(self) -> None: ...
        def _bind(
            self, comm: MPI.Comm, call: _core.Call, buffers: Any, result: Any, before: Any, /
        ) -> None: ...
        def _unbind(self) -> None: ...
        def Wait(self, status: MPI.Status | None = None) -> Literal[True]: ...
        def Test(self, status: MPI.Status | None = None) -> bool: ...

else:
    _Base = _core.persistent_type(MPI.Prequest)


class PersistentAllreduce(_Base):
    """An allreduce on fixed buffers; made by `Comm.Allreduce_init`.

    `p()` starts the operation and waits for it; `p.Start()` and `p.Wait()` do so in two steps.
    Ranks may start their persistent operations in different orders, before and after other calls:
    the operations that were made together belong together. One rank may call `p()` where another
    calls `Start` and `Wait`. Between them the buffers belong to the operation.

    `MPI.Prequest.Startall` starts several. While it is started, `MPI.Request.Waitall` and similar
    calls accept it. Both take the MPI's own requests too.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> x = numpy.ones(3)
        >>> p = gradred.Comm(MPI.COMM_SELF).Allreduce_init(MPI.IN_PLACE, x)
        >>> p()
        >>> p.Free()
        >>> x
        array([1., 1., 1.])
    """

    __slots__ = ("_buffers", "_comm", "_is_freed")
    _comm: MPI.Comm | None  # None: the request is the MPI's own
    _buffers: Any
    _is_freed: bool

    @classmethod
    def prepare(
        cls,
        comm: MPI.Comm,
        call: _core.Call,
        buffers: Any,
        result: Any,
        before: Callable[[], object] | None = None,
    ) -> PersistentAllreduce:
        """Make a request that gradred carries out; it keeps `buffers` alive.

        `result` is the program's recvbuf: autograd sees each round's write to a tensor there. Each
        round begins with `before()`.
        """
        self = cls()
        self._comm, self._buffers, self._is_freed = comm, None, False  # the base keeps the buffers
        self._bind(comm, call, buffers, result, before)
        return self

    @classmethod
    def of_mpi(cls, request: MPI.Prequest, buffers: Any) -> PersistentAllreduce:
        """Wrap the MPI's own persistent request, to give it this class's methods."""
        self = cls(request)
        self._comm, self._buffers, self._is_freed = None, buffers, False
        return self

    def __bool__(self) -> bool:
        """Return whether it is not freed. As in MPI, it is not null between two rounds."""
        return super().__bool__() if self._comm is None else not self._is_freed

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same request, or both are null."""
        if self._comm is None or not isinstance(other, MPI.Request):
            return super().__eq__(other)
        if self is other or (self and not self._in_flight()):
            return self is other
        return super().__eq__(other) if self else not other

    def __ne__(self, other: object) -> bool:
        """Return whether they are different requests."""
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # as in mpi4py's requests

    def _in_flight(self) -> bool:
        """Return whether the MPI has a request for it, which no function has completed."""
        return super().__bool__()

    def _start_unbound(self) -> None:
        """Carry out `Start` for requests that the extension does not handle."""
        if self._comm is None:
            return MPI.Prequest.Start(self)
        message = explain("Start", "the request is freed", "Make a new one by Allreduce_init")
        raise usage_error(message, "ERR_REQUEST")

    def _refuse_start(self) -> NoReturn:
        message = explain("Start", "the operation is started already", "Call Wait first")
        raise usage_error(message, "ERR_REQUEST")

    def _start_and_wait(self) -> None:
        """Carry out `p()` for requests of the MPI's own, and those that are freed or started."""
        self.Start()
        self.Wait()

    def Free(self) -> None:
        """Free the request; an operation in flight still ends, on memory that gradred keeps."""
        if self._comm is None:
            return super().Free()
        self._unbind()  # raises while another thread is in p(), which uses the buffers
        self._is_freed = True
        if self._in_flight() and not MPI.Is_finalized():
            super().Free()
        return None

    def free(self) -> None:
        """Call `Free`, under mpi4py's other name."""
        if self._comm is None:
            return super().free()
        return self.Free()

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Call `Wait`, under mpi4py's other name; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Call `Test`, under mpi4py's other name; there is no object to return."""
        return self.Test(status), None


_startall_of_mpi = MPI.Prequest.Startall


def _startall(cls: type[MPI.Prequest], requests: list[MPI.Prequest]) -> None:
    """Start several persistent operations, gradred's and the MPI's, in this order."""
    if not any(isinstance(request, PersistentAllreduce) for request in requests):
        return _startall_of_mpi(requests)
    for request in requests:
        request.Start()
    return None


# mpi4py's hands the C handles of all requests to the MPI, which cannot start gradred's.
_core.replace_method(MPI.Prequest, "Startall", classmethod(_startall))
