"""Requests of non-blocking calls: real MPI requests that gradred drives."""

# ruff: noqa: N802 (MPI's own names)
from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mpi4py import MPI

from gradred import _core, streams
from gradred.errors import UsageError, explain

RequestT = TypeVar("RequestT", bound="Request")

# What operations in flight read and write must live even if the program forgets its request.
_in_flight: collections.OrderedDict[_core.Operation, Any] = collections.OrderedDict()

# Unfinished operations that one call of `keep_alive` passes over: with two, those that have ended
# are let go before as many others have been started, however many there are.
_PASSED_OVER = 2


def keep_alive(operation: _core.Operation, buffers: Any) -> None:
    """Hold `buffers` as long as the operation may use them; lets go of those of earlier ones."""
    let_ended_go()
    if not operation.ended or operation.holds_memory:
        _in_flight[operation] = buffers


def let_ended_go() -> None:
    """Let go of what ended operations have worked on; looks at a few of them only."""
    left = min(_PASSED_OVER, len(_in_flight))
    while left:
        try:
            earlier, its_buffers = _in_flight.popitem(last=False)
        except KeyError:  # none is left, perhaps since another thread is here as well
            break
        if not earlier.ended or earlier.holds_memory:
            _in_flight[earlier] = its_buffers  # behind all others: none hides those after it
            left -= 1


def let_go(operation: _core.Operation) -> None:
    """Hold the buffers of an operation that has ended no longer, unless the MPI may use them."""
    if not operation.holds_memory:
        _in_flight.pop(operation, None)


if TYPE_CHECKING:

    class _Base(MPI.Request):
        """What the extension adds, so that starting and waiting cost next to nothing."""

        @property
        def _operation(self) -> _core.Operation | None: ...
        def _hold(self, operation: _core.Operation | None, memory: Any, /) -> None: ...
        def Wait(self, status: MPI.Status | None = None) -> Literal[True]: ...
        def Test(self, status: MPI.Status | None = None) -> bool: ...

else:
    _Base = _core.request_type(MPI.Request)


class Request(_Base):
    """A non-blocking operation in flight; `MPI.Request.Waitall` and its like take it too.

    `Wait` and `Test` of this class let the waiting thread itself carry the operation on, which is
    faster than waiting for the progress thread.
    """

    __slots__ = ()

    @classmethod
    def start(cls: type[RequestT], comm: MPI.Comm, call: _core.Call, buffers: Any) -> RequestT:
        """Start `call` and return at once; `buffers` live until the operation has ended."""
        operation = _core.start(comm, call)
        streams.tell_if_host_waits(operation)
        return cls.of(operation, (call, buffers))

    @classmethod
    def of(cls: type[RequestT], operation: _core.Operation, buffers: Any) -> RequestT:
        """The request of an operation that has been started."""
        let_ended_go()
        handle = operation.request
        request = cls() if handle is None else cls(MPI.Request.fromhandle(handle))
        # The MPI's own functions wait for a request of its own.
        request._hold(None if operation.uses_mpi_request else operation, buffers)
        return request

    def add_done_callback(self: RequestT, fn: Callable[[RequestT], object]) -> None:
        """Have `fn(request)` called once when the operation has ended, well or not.

        It is called by the thread whose `Wait` or `Test` of this request finds the end, else by a
        thread that gradred keeps for callbacks; if the operation has ended already, at once, by
        this thread. Callbacks of one request are called one after the other, in the order in which
        they were added; those of several may run at the same time. `fn` may start operations, wait
        for them or for other callbacks, and take its time: what is in flight goes on. What it
        raises goes to `sys.unraisablehook` and disturbs nothing else. `request.Wait()` in it raises
        what ended the operation, unless the program has been told by a `Wait` or `Test` before. It
        must not be called there if the program waits for this request by the MPI's own functions,
        such as `MPI.Request.Waitall`: no two threads may complete one request of the MPI.

        Operations that the program leaves in flight are given up when it ends, and their callbacks
        called. Where gradred has no threads (MPI below `MPI.THREAD_MULTIPLE`, or
        `GRADRED_PROGRESS_THREAD=0`), `Wait` and `Test` of any of gradred's requests call callbacks,
        and nothing else does.

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
        operation = self._operation
        if operation is not None:
            operation.add_done_callback(fn, self)
        elif self:
            found = "the MPI below MPI_THREAD_MULTIPLE carries it out, and tells nobody of its end"
            remedy = "Initialise MPI with THREAD_MULTIPLE, or use gradred.iallreduce"
            raise UsageError(explain("add_done_callback of a request", found, remedy))
        else:
            _core.call_callback(fn, self)

    def wait_stream(self, stream: streams.StreamLike) -> None:
        """Have a CUDA stream wait for the result; returns at once, and frees no request.

        What the stream is given from now on comes after the result. An operation that was started
        without `stream=`, or on arrays in host memory, is waited for by the host, as by `Wait`.

        Args:
            stream: as in `gradred.allreduce`.

        Raises:
            gradred.UsageError: it is no stream, or one that is being captured.
            gradred.Error: what has ended the operation.
        """
        handle = streams.handle_of(stream, "wait_stream")
        operation = self._operation
        if operation is None or (operation.ended and operation.failed):
            self.Wait()
        else:
            streams.make_wait(operation, handle)

    def wait(self, status: MPI.Status | None = None) -> Any:
        """`Wait`, by mpi4py's other name; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """`Test`, by mpi4py's other name; there is no object to return."""
        return self.Test(status), None

    @classmethod
    def Waitall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> Literal[True]:
        """Block until all requests, gradred's and the MPI's, are done.

        Raises:
            gradred.Error: what ended one of the operations; the others have ended as well.
        """
        failure: Exception | None = None
        found: list[MPI.Status | None] = [None] * len(requests)
        if statuses is not None:  # filled in place, as mpi4py does it
            statuses[:] = statuses[: len(requests)]
            statuses += [MPI.Status() for _ in requests[len(statuses) :]]
            found[:] = statuses
        pending = []
        for index, request in enumerate(requests):
            if getattr(request, "_operation", None) is None:
                pending.append(index)
                continue
            try:  # the thread that waits carries on all operations, and the MPI
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
            if pending:  # another thread may need the GIL to go on
                time.sleep(pause)
        if failure is not None:
            raise failure
        return True


def run_in_stream(comm: MPI.Comm, call: _core.Call, buffers: Any, stream: int | None) -> None:
    """Carry out a call: block until the result is there, or until `stream` waits for it.

    Args:
        comm: a communicator whose ranks all make such a call.
        call: whose placement has the stream.
        buffers: what must live until the operation has ended.
        stream: the handle; None blocks.
    """
    if stream is None:
        _core.run(comm, call, buffers)
        return
    _core.prepare(comm)  # nothing is set up while a stream waits
    operation = start(comm, call, buffers)
    if operation.ended:
        operation.rethrow()
    streams.make_wait(operation, stream)


def start(comm: MPI.Comm, call: _core.Call, buffers: Any) -> _core.Operation:
    """Start a call, whose placement may have a stream; `buffers` live until its end."""
    operation = _core.start(comm, call, mpi_request=False)
    keep_alive(operation, (call, buffers))
    streams.tell_if_host_waits(operation)
    return operation


_core.use_request_class(Request, keep_alive, let_ended_go, _in_flight)


def release_handle(
    request: MPI.Request, operation: _core.Operation, status: MPI.Status | None
) -> None:
    """Complete the MPI's side of a request whose operation has ended."""
    if request:
        address = 0 if status is None else MPI._addressof(status)
        _core.release_request(request, operation, address)
