"""Requests of non-blocking calls: real MPI requests whose operations gradred advances."""

# ruff: noqa: N802 (MPI's own names)
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mpi4py import MPI

from gradred import _core, streams
from gradred.errors import UsageError, UsageTypeError

RequestT = TypeVar("RequestT", bound="Request")


def require_callable(fn: object) -> None:
    """Raise UsageTypeError unless `fn` can be a callback of a request."""
    if not callable(fn):
        remedy = "Pass a function of one argument, the request"
        raise UsageTypeError("add_done_callback of a request", f"{fn!r} cannot be called", remedy)


if TYPE_CHECKING:

    class _Base(MPI.Request):
        """The members that the extension adds, for fast starts and waits."""

        @property
        def _operation(self) -> _core.Operation | None: ...
        @property
        def _ended(self) -> bool: ...  # before there was a request for it
        def _hold(self, operation: _core.Operation | None, memory: Any, /) -> None: ...
        def _free_ended(self) -> bool: ...
        def Wait(self, status: MPI.Status | None = None) -> Literal[True]: ...
        def Test(self, status: MPI.Status | None = None) -> bool: ...

else:
    _Base = _core.request_type(MPI.Request)


class Request(_Base):
    """A non-blocking operation in flight; `MPI.Request.Waitall` and similar calls accept it too.

    In `Wait` and `Test` of this class the waiting thread itself makes progress on the operation,
    which is faster than waiting for the progress thread.
    """

    __slots__ = ()

    @classmethod
    def start(cls: type[RequestT], comm: MPI.Comm, call: _core.Call, buffers: Any) -> RequestT:
        """Start `call` and return immediately; keeps `buffers` alive until the operation ends."""
        operation = _core.start(comm, call)
        streams.warn_if_host_waits(operation)
        return cls.of(operation, (call, buffers))

    @classmethod
    def of(cls: type[RequestT], operation: _core.Operation, buffers: Any) -> RequestT:
        """Make the request of an operation that has been started."""
        request = cls()
        request._hold(operation, buffers)
        return request

    @classmethod
    def of_mpi(cls: type[RequestT], request: MPI.Request, buffers: Any) -> RequestT:
        """Wrap the MPI's own request, to keep `buffers` alive, which mpi4py's may not do."""
        wrapped = cls(request)
        wrapped._hold(None, buffers)
        return wrapped

    def add_done_callback(self: RequestT, fn: Callable[[RequestT], object]) -> None:
        """Call `fn(request)` once when the operation has ended, with or without an error.

        The thread whose `Wait` or `Test` of this request finds the end calls it. Otherwise a
        thread that gradred has for callbacks calls it. If the operation has ended already, this
        thread calls `fn` immediately. Callbacks of one request run one after the other, in the
        order in which they were added. Callbacks of several requests may run at the same time.

        `fn` may start operations, wait for them or for other callbacks, and take its time:
        operations in flight continue. Its exceptions go to `sys.unraisablehook` and affect nothing
        else. `request.Wait()` in it raises the operation's error, unless an earlier `Wait` or
        `Test` of the program has raised it. `fn` must not call it if the program waits for this
        request by the MPI's own functions, such as `MPI.Request.Waitall`: no two threads may
        complete one MPI request.

        When the program ends, gradred abandons operations that are still in flight and calls their
        callbacks. If gradred has no threads (MPI below `MPI.THREAD_MULTIPLE`, or
        `GRADRED_PROGRESS_THREAD=0`), only `Wait` and `Test` of gradred's requests call callbacks.

        Args:
            fn: called with this request; its result is ignored.

        Raises:
            gradred.UsageError: the request is the MPI's own, as below `MPI.THREAD_MULTIPLE` with
                MPIs other than MPICH and Open MPI.

        Example:
            >>> import numpy, gradred
            >>> from mpi4py import MPI
            >>> x = numpy.ones(3)
            >>> request = gradred.Comm(MPI.COMM_SELF).Iallreduce(MPI.IN_PLACE, x)
            >>> request.add_done_callback(lambda request: print("done"))
            done
            >>> request.Wait()
            True
        """
        require_callable(fn)
        operation = self._operation
        if operation is not None:
            operation.add_done_callback(fn, self)
        elif self and not self._ended:
            found = "the MPI below MPI_THREAD_MULTIPLE carries it out, and does not report its end"
            remedy = "Initialise MPI with THREAD_MULTIPLE, or use gradred.iallreduce"
            raise UsageError("add_done_callback of a request", found, remedy)
        else:
            _core.call_callback(fn, self)

    def wait_stream(self, stream: streams.StreamLike) -> None:
        """Make a CUDA stream wait for the result; returns immediately and frees no request.

        Work that the stream is given later follows the result. If the operation was started
        without `stream=`, or on arrays in host memory, the host waits for it as in `Wait`.

        Args:
            stream: as in `gradred.allreduce`.

        Raises:
            gradred.UsageError: `stream` is not a stream, or is being captured.
            gradred.Error: the operation failed.
        """
        handle = streams.handle_of(stream, "wait_stream")
        operation = self._operation
        if operation is None and self._ended:
            return
        if operation is None or (operation.ended and operation.failed):
            self.Wait()
        else:
            streams.make_wait(operation, handle)

    def Free(self) -> None:
        """Give the request up; the operation goes on, and gradred keeps its memory alive."""
        if not self._free_ended():
            super().Free()

    def free(self) -> None:
        """Call `Free`, under mpi4py's other name."""
        if not self._free_ended():
            super().free()

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Call `Wait`, under mpi4py's other name; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Call `Test`, under mpi4py's other name; there is no object to return."""
        return self.Test(status), None

    @classmethod
    def Waitall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> Literal[True]:
        """Block until all requests, gradred's and the MPI's, have completed.

        Raises:
            gradred.Error: one of the operations failed; the others have ended as well.
        """
        failure: Exception | None = None
        found: list[MPI.Status | None] = [None] * len(requests)
        if statuses is not None:  # filled in place, as in mpi4py
            statuses[:] = statuses[: len(requests)]
            statuses += [MPI.Status() for _ in requests[len(statuses) :]]
            found[:] = statuses
        pending = []
        for index, request in enumerate(requests):
            if getattr(request, "_operation", None) is None:
                pending.append(index)
                continue
            try:  # the waiting thread makes progress on all operations, and on the MPI
                request.Wait(found[index])
            except Exception as error:
                failure = failure or error
        pause = 0.0
        while pending:
            before = len(pending)
            for index in list(pending):
                try:
                    if not requests[index].Test(found[index]):
                        continue
                except Exception as error:
                    failure = failure or error
                pending.remove(index)
            pause = 0.0 if len(pending) < before else min(pause + 1e-6, 1e-4)
            if pending:  # another thread may need the GIL to make progress
                time.sleep(pause)
        if failure is not None:
            raise failure
        return True


def run_in_stream(comm: MPI.Comm, call: _core.Call, buffers: Any, stream: int | None) -> None:
    """Carry out a call: block until the result is there, or make `stream` wait for it.

    Args:
        comm: a communicator; all its ranks make such a call.
        call: the call, whose placement contains the stream.
        buffers: the objects to keep alive until the operation has ended.
        stream: the stream's handle; None blocks.
    """
    if stream is None:
        _core.run(comm, call, buffers)
        return
    _core.prepare(comm)  # sets up the communicator now: nothing is set up while a stream waits
    operation = start(comm, call, buffers)
    if operation.ended:
        operation.rethrow()
    streams.make_wait(operation, stream)


def start(comm: MPI.Comm, call: _core.Call, buffers: Any) -> _core.Operation:
    """Start a call, whose placement may contain a stream; keeps `buffers` alive until it ends."""
    operation = _core.start(comm, call, mpi_request=False)
    operation.hold((call, buffers))
    streams.warn_if_host_waits(operation)
    return operation


_core.use_request_class(Request)


def release_handle(
    request: MPI.Request, operation: _core.Operation, status: MPI.Status | None
) -> None:
    """Complete the MPI request of an operation that has ended."""
    address = 0 if status is None else MPI._addressof(status)
    _core.release_request(request, operation, address)
