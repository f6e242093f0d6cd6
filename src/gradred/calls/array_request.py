"""The request that a function returns which starts a call on arrays."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from gradred import _core, streams
from gradred._util import clock
from gradred.errors import Error, UsageError, explain
from gradred.request import require_callable

if TYPE_CHECKING:
    from gradred.streams import StreamLike

ResultT = TypeVar("ResultT")
RequestT = TypeVar("RequestT", bound="ArrayRequest[Any]")


class ArrayRequest(_core.ArrayRequestBase, Generic[ResultT]):
    """A call on arrays in flight; made by `gradred.iallreduce`, `iscan`, `igather` and the like.

    Any thread may wait for it, and several threads at the same time. The program may also drop it:
    the operation continues, and gradred keeps its memory alive until it ends. It is no
    `MPI.Request`, since the MPI cannot make arrays from what it has received. `comm.Iallreduce`
    returns an `MPI.Request`.
    """

    __slots__ = ("__weakref__",)

    if TYPE_CHECKING:

        @property
        def _result(self) -> ResultT: ...
        def wait(self, timeout: float | None = None) -> ResultT: ...  # noqa: D102 (the extension's)

    _failure: Error | None = None  # of the unpacking, after the operations

    @property
    def _operations(self) -> Sequence[_core.Operation]:
        return () if self._operation is None else (self._operation,)

    def _wait(self, timeout: float | None) -> ResultT:
        """Wait where the extension leaves it to Python."""
        if timeout is not None and math.isnan(timeout):
            remedy = "Pass seconds, or None to wait without a limit of its own"
            raise UsageError(f"wait(timeout={timeout})", "NaN is not a time", remedy)
        deadline = None if timeout is None else clock.now() + timeout
        failed: Exception | None = None
        for operation in self._operations:
            left = None if deadline is None else max(0.0, deadline - clock.now())
            try:
                ended = operation.wait(left)
            except Exception as error:
                if not operation.ended:
                    raise
                failed = failed or error
                continue
            if not ended:
                found = f"the operation has not ended within {timeout} s; it goes on"
                raise TimeoutError(explain("wait", found, "Wait again"))
        self._settle()
        if (failure := failed or self._failure) is not None:
            raise failure
        return self._finished()

    def wait_stream(self, stream: StreamLike) -> ResultT:
        """Make a CUDA stream wait for the result, and return the result immediately.

        Work that the stream is given later follows the result; the host does not wait. If the
        operation was started without `stream=`, or on arrays in host memory, the host waits for
        it as in `wait`.

        Args:
            stream: as in `allreduce`.

        Raises:
            gradred.UsageError: `stream` is not a stream, or is being captured.
            gradred.Error: the operation failed.
        """
        streams.handle_of(stream, "wait_stream")
        return self.wait()

    def result(self, timeout: float | None = None) -> ResultT:
        """Call `wait`, under the name that futures have for it."""
        return self.wait(timeout)

    def done(self) -> bool:
        """Return whether the operation has ended, with or without an error.

        Does not block, and makes some progress on operations in flight. After True `wait` does
        not block.
        """
        if not all(operation.test() for operation in self._operations):
            return False
        self._settle()
        return True

    def test(self) -> bool:
        """Call `done`, under MPI's name."""
        return self.done()

    def add_done_callback(self: RequestT, fn: Callable[[RequestT], object]) -> None:
        """Call `fn(request)` once when the operation has ended, with or without an error.

        `gradred.Request.add_done_callback` says which thread calls it and what it may do.
        `request.wait()` in it returns the result immediately, or raises the operation's error.

        Example:
            >>> import numpy, gradred
            >>> from mpi4py import MPI
            >>> request = gradred.iallreduce(numpy.ones(3), comm=MPI.COMM_SELF)
            >>> request.add_done_callback(lambda request: print(request.wait()))
            [1. 1. 1.]
        """
        require_callable(fn)
        self._call_after(0, fn)

    def _call_after(self: RequestT, index: int, fn: Callable[[RequestT], object]) -> None:
        """Call `fn` once the other operations have ended; the first `index` have ended already."""
        if index >= len(self._operations):  # a thread that waits lets go of it
            self._settle()
            _core.call_callback(fn, self)
            return
        later = functools.partial(self._call_after, index + 1)
        self._operations[index].add_done_callback(later, fn)

    def _finished(self) -> ResultT:
        return self._result

    def _settle(self) -> None:
        """Unpack the results once, after all operations have ended."""


_core.use_array_request_class(ArrayRequest)


class Unpacks(Protocol):
    """What brings the result of an operation to the program's arrays."""

    def unpack(self) -> None:
        """Do so, once the operation has ended."""


class RequestOfOperations(ArrayRequest[ResultT]):
    """The request of operations whose results have to be unpacked or made into arrays."""

    __slots__ = ("_buckets", "_failure", "_finish", "_lock", "_made", "_operations")
    _made: ResultT

    def __init__(
        self,
        operations: Sequence[tuple[Unpacks | None, _core.Operation]],
        finish: Callable[[], ResultT],
    ) -> None:
        self._operations = [operation for _, operation in operations]  # type: ignore[misc]
        self._buckets = operations
        self._finish: Callable[[], ResultT] | None = finish
        self._lock = threading.Lock()
        self._failure = None

    def wait_stream(self, stream: StreamLike) -> ResultT:  # noqa: D102 (as of the base)
        handle = streams.handle_of(stream, "wait_stream")
        if self._buckets and all(
            bucket is None and operation.in_stream_order and not operation.failed
            for bucket, operation in self._buckets
        ):
            for operation in self._operations:
                operation.wait_stream(handle)
            return self._finished()
        return self.wait()

    def _finished(self) -> ResultT:
        """Return the result, which the first caller makes."""
        if self._finish is None:
            return self._made
        with self._lock:
            if self._finish is not None:
                self._made = self._finish()
                self._finish = None
            return self._made

    def _settle(self) -> None:
        with self._lock:
            buckets, self._buckets = self._buckets, []
            for bucket, operation in buckets:
                if bucket is not None and not operation.failed:
                    try:
                        bucket.unpack()
                    except Error as error:
                        self._failure = self._failure or error
