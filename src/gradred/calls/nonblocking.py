"""Allreduce of arrays that does not block: the result comes by way of a request."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from gradred import _core, streams
from gradred._util import clock
from gradred.calls import arguments, reductions
from gradred.calls.reductions import Asked
from gradred.errors import Error, UsageError, explain
from gradred.request import let_go, start

if TYPE_CHECKING:
    from mpi4py import MPI

    from gradred.ops import OpLike
    from gradred.plans import PlanLike
    from gradred.streams import StreamLike

ArrayT = TypeVar("ArrayT")
OutT = TypeVar("OutT")
ResultT = TypeVar("ResultT")
RequestT = TypeVar("RequestT", bound="ArrayRequest[Any]")


class ArrayRequest(Generic[ResultT]):
    """An allreduce of arrays in flight; made by `gradred.iallreduce` and `iallreduce_many`.

    Any thread may wait for it, several at the same time. The program may also forget it: the
    operation goes on, and the memory that it uses lives until its end. It is no `MPI.Request`,
    since the MPI cannot make arrays of what has arrived: `comm.Iallreduce` gives one.
    """

    __slots__ = (
        "__weakref__",
        "_buckets",
        "_failure",
        "_finish",
        "_lock",
        "_operations",
        "_result",
    )
    _result: ResultT

    def __init__(
        self,
        operations: Sequence[tuple[_core.Bucket | None, _core.Operation]],
        finish: Callable[[], ResultT],
    ) -> None:
        self._operations = [operation for _, operation in operations]
        self._buckets = operations
        self._finish: Callable[[], ResultT] | None = finish
        self._lock = threading.Lock()
        self._failure: Error | None = None  # of what came after the operations

    def wait(self, timeout: float | None = None) -> ResultT:
        """Block until the operation has ended, and return the result.

        The thread that waits carries on what is in flight by itself.

        Args:
            timeout: seconds to wait for it; None waits as long as `GRADRED_TIMEOUT` allows.

        Raises:
            TimeoutError: it has not ended in this time. It goes on: wait again.
            gradred.UsageError: `timeout` is NaN.
            gradred.Error: what ended it, each time one asks.
        """
        if timeout is not None and math.isnan(timeout):
            remedy = "Pass seconds, or None to wait without a limit of its own"
            raise UsageError(explain(f"wait(timeout={timeout})", "NaN is no time", remedy))
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
        with self._lock:
            if self._finish is not None:
                self._result = self._finish()
                self._finish = None
            return self._result

    def wait_stream(self, stream: StreamLike) -> ResultT:
        """Have a CUDA stream wait for the result, and return it at once.

        What the stream is given from now on comes after the result; the host does not wait. An
        operation that was started without `stream=`, or on arrays in host memory, is waited for by
        the host, as by `wait`.

        Args:
            stream: as in `allreduce`.

        Raises:
            gradred.UsageError: it is no stream, or one that is being captured.
            gradred.Error: what has ended the operation.
        """
        handle = streams.handle_of(stream, "wait_stream")
        if self._buckets and all(
            bucket is None and operation.in_stream_order and not operation.failed
            for bucket, operation in self._buckets
        ):
            for operation in self._operations:
                operation.wait_stream(handle)
            with self._lock:
                if self._finish is not None:
                    self._result = self._finish()
                    self._finish = None
                return self._result
        return self.wait()

    def result(self, timeout: float | None = None) -> ResultT:
        """`wait`, by the name that futures have for it."""
        return self.wait(timeout)

    def done(self) -> bool:
        """Whether the operation has ended, well or not; then `wait` does not block.

        Does not block, and carries on what is in flight a little.
        """
        if not all(operation.test() for operation in self._operations):
            return False
        self._settle()
        return True

    def test(self) -> bool:
        """`done`, by MPI's name."""
        return self.done()

    def add_done_callback(self: RequestT, fn: Callable[[RequestT], object]) -> None:
        """Have `fn(request)` called once when the operation has ended, well or not.

        By whom, and what it may do: as `gradred.Request.add_done_callback`. `request.wait()` in it
        gives the result at once, or raises what ended the operation.

        Example:
            >>> import numpy, gradred
            >>> from mpi4py import MPI
            >>> request = gradred.iallreduce(numpy.ones(3), comm=MPI.COMM_SELF)
            >>> request.add_done_callback(lambda request: print(request.wait()))
            [1. 1. 1.]
        """
        self._operations[0].add_done_callback(functools.partial(self._call_after, 1), fn)

    def _call_after(self: RequestT, index: int, fn: Callable[[RequestT], object]) -> None:
        """`index` operations have ended: call `fn` after the others."""
        if index == len(self._operations):
            self._settle()
            _core.call_callback(fn, self)
            return
        later = functools.partial(self._call_after, index + 1)
        self._operations[index].add_done_callback(later, fn)

    def _settle(self) -> None:
        """All operations have ended: put the results where the caller wants them, once."""
        with self._lock:
            buckets, self._buckets = self._buckets, []
            for bucket, operation in buckets:
                let_go(operation)
                if bucket is not None and not operation.failed:
                    try:
                        bucket.unpack()
                    except Error as error:
                        self._failure = self._failure or error


@overload
def iallreduce(
    x: ArrayT,
    op: OpLike = ...,
    *,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayRequest[ArrayT]: ...
@overload
def iallreduce(
    x: Any,
    op: OpLike = ...,
    *,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayRequest[OutT]: ...
def iallreduce(
    x: Any,
    op: OpLike = "sum",
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> ArrayRequest[Any]:
    """Start an `allreduce` of arrays; returns at once, before any other rank has to do anything.

    All ranks get bitwise the same result. They start what they start on one communicator in the
    same order; it ends in any order, and may be waited for in any.

    Args:
        x: this rank's array, as in `allreduce`; not to be changed until the operation has ended.
        op: a name from `gradred.OPS`, `gradred.premul(factor)`, `gradred.user_op(f)` or a
            predefined MPI.Op.
        out: where the result goes, as in `allreduce`; not to be touched until the end, which
            `wait` or `done` tell.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: a CUDA stream whose work so far comes first, as in `allreduce`. Streams wait for
            the result by the request's `wait_stream`, this one, too. Begin with a blocking call:
            the MPI carries out what comes before the first.
        plan: as in `allreduce`.

    Returns:
        A request whose `wait()` returns `out`, or a new array of the kind of `x`.

    Raises:
        gradred.UsageError: the arguments do not fit each other.
        gradred.DeviceError: a GPU, its driver or its memory failed.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> request = gradred.iallreduce(numpy.ones(3, "float32"), comm=MPI.COMM_SELF)
        >>> request.wait()
        array([1., 1., 1.], dtype=float32)
    """
    comm = arguments.communicator(comm, "iallreduce")
    if stream is None and plan is None:
        plain = _core.allreduce_call(comm, x, op, out)
        if plain is not None:
            call, result = plain
            return ArrayRequest([(None, start(comm, call, (x, result)))], lambda: result)
    found = reductions.one(Asked("iallreduce", op, comm, stream, plan, blocking=False), x, out)
    assert found.call is not None  # of no operation that only the MPI knows
    operation = start(comm, found.call, found)
    return ArrayRequest([(None, operation)], found.result.finish)


def iallreduce_many(
    arrays_in: Sequence[ArrayT],
    op: OpLike = "sum",
    *,
    out: Sequence[Any] | None = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> ArrayRequest[list[ArrayT]]:
    """Start an `allreduce_many`: several arrays of any types and sizes; returns at once.

    Args:
        arrays_in: this rank's arrays, as in `allreduce_many`; not to be changed until the
            operation has ended.
        op: as in `iallreduce`; it must suit every type.
        out: an array for each result, or None for new ones, as in `allreduce_many`; not to be
            touched until the end, which `wait` or `done` tell.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `allreduce_many`.
        plan: as in `allreduce_many`.

    Returns:
        A request whose `wait()` returns the results in the order of the arrays.

    Raises:
        gradred.UsageError: the arguments do not fit each other.
        gradred.DeviceError: a GPU, its driver or its memory failed.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> a, b = numpy.ones(2), numpy.arange(2)
        >>> gradred.iallreduce_many([a, b], comm=MPI.COMM_SELF).wait()
        [array([1., 1.]), array([0, 1])]
    """
    comm = arguments.communicator(comm, "iallreduce_many")
    asked = Asked("iallreduce_many", op, comm, stream, plan, blocking=False)
    found = reductions.many(asked, arrays_in, out)
    operations = []
    for bucket in found.buckets:
        with asked.refusing():  # there may be no memory to pack it in
            bucket.pack()
        operations.append((bucket, start(comm, bucket.call, (bucket, found.held))))
    return ArrayRequest(operations, found.finish)
