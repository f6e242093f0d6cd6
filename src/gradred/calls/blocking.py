"""Blocking allreduce of arrays; it takes any array and returns the same kind of array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from mpi4py import MPI

from gradred import _core
from gradred.buffers import mpi_fallback
from gradred.buffers.arrays import Array
from gradred.buffers.messages import Message
from gradred.calls import arguments, reductions
from gradred.calls.reductions import Asked, One
from gradred.comm import Comm
from gradred.request import run_in_stream

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, InPlace

    from gradred.ops import OpLike
    from gradred.plans import PlanLike
    from gradred.streams import StreamLike

ArrayT = TypeVar("ArrayT")
OutT = TypeVar("OutT")


@overload
def allreduce(
    x: ArrayT,
    op: OpLike = ...,
    *,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayT: ...
@overload
def allreduce(
    x: Any,
    op: OpLike = ...,
    *,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> OutT: ...
def allreduce(
    x: Any,
    op: OpLike = "sum",
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> Any:
    """Reduce the arrays of all ranks elementwise; every rank gets the result.

    Blocks until the result is there, unless `stream` is given. All ranks get bitwise the same.

    Args:
        x: this rank's array. It is unchanged unless it is `out`. Any dense array; shape, type and
            order of the axes must be the same on all ranks.
        op: a name from `gradred.OPS`, `gradred.premul(factor)`, `gradred.user_op(f)` or an
            MPI.Op.
        out: where the result goes: a writable array of that shape, type and order, or `x` itself
            to reduce in place. None makes a new array.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: a CUDA stream; the call is then in stream order and returns immediately. It follows
            the work that the stream has been given so far. Work that the stream is given later
            sees the result. A stream of CuPy, PyTorch, Numba or cuda.core, or an integer as in
            the array API. All ranks pass a stream, or none does. The next call on `comm` raises
            a later error of the operation. With None the call blocks, and follows the work of a
            GPU array's own stream.
        plan: the name of a plan, or a schedule of the user, or a function `(rank, size)` that
            makes one; None lets gradred choose.

    Returns:
        `out`, or a new array of the kind of `x`.

    Raises:
        gradred.UsageError: the arguments are inconsistent, or the ranks' calls differ.
        gradred.DeviceError: a GPU, its driver or its memory failed.
        gradred.PeerLost: the process of a peer has ended.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.allreduce(numpy.ones(3, "float32"), comm=MPI.COMM_SELF)
        array([1., 1., 1.], dtype=float32)
    """
    comm = arguments.communicator(comm, "allreduce")
    if stream is None and plan is None:
        result = _core.allreduce_array(comm, x, op, out)
        if result is not None:
            return result
    asked = Asked("allreduce", op, comm, stream, plan)
    found = reductions.one(asked, x, out)
    if found.call is None:
        _allreduce_by_mpi(asked, found)
    else:
        run_in_stream(comm, found.call, found, found.stream)
    return found.result.finish()


def allreduce_many(
    arrays_in: Sequence[ArrayT],
    op: OpLike = "sum",
    *,
    out: Sequence[Any] | None = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> list[ArrayT]:
    """Reduce several arrays of any types and sizes in one call, cheaper than one call for each.

    Small arrays of one type are packed and travel together. Large arrays are reduced without
    packing. Blocks until all results are there.

    Args:
        arrays_in: this rank's arrays; number, shapes, types and orders of axes must be the same
            on all ranks.
        op: as in `allreduce`; every type must have the operation.
        out: an array for each result, or None for new ones. A result may replace its own input. It
            shares no memory with any other array.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: a CUDA stream whose earlier work the call follows. The host waits for that work,
            since arrays are packed.
        plan: as in `allreduce`; it applies to each packed vector and each large array.

    Returns:
        The results in the order of the arrays.

    Raises:
        gradred.UsageError: the arguments are inconsistent, or the ranks' calls differ.
        gradred.DeviceError: a GPU, its driver or its memory failed.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> a, b = numpy.ones(2), numpy.arange(2)
        >>> gradred.allreduce_many([a, b], comm=MPI.COMM_SELF)
        [array([1., 1.]), array([0, 1])]
    """
    comm = arguments.communicator(comm, "allreduce_many")
    if stream is None and plan is None:
        results: list[Any] | None = _core.allreduce_list(comm, arrays_in, op, out)
        if results is not None:
            return results
    found = reductions.many(Asked("allreduce_many", op, comm, stream, plan), arrays_in, out)
    _core.run_buckets(comm, found.buckets)
    return found.finish()


def Allreduce(  # noqa: N802 (MPI's own name)
    sendbuf: BufSpec | InPlace,
    recvbuf: BufSpec,
    op: OpLike = MPI.SUM,
    comm: MPI.Intracomm | None = None,
    *,
    stream: StreamLike = None,
) -> None:
    """Call mpi4py's `comm.Allreduce` by gradred, on any intracommunicator.

    Args:
        sendbuf: this rank's input, left unchanged: an array or an mpi4py buffer specification;
            `MPI.IN_PLACE` (or None) takes it from `recvbuf`.
        recvbuf: where the result goes; writable, with as many elements of the same type.
        op: an MPI.Op, a name from `gradred.OPS`, `gradred.premul(factor)` or
            `gradred.user_op(f)`.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `allreduce`.

    Raises:
        gradred.UsageError: the arguments are inconsistent, or the ranks' calls differ.
        gradred.PeerLost: the process of a peer has ended.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> x = numpy.ones(3)
        >>> gradred.Allreduce(MPI.IN_PLACE, x, comm=MPI.COMM_SELF)
    """
    comm = arguments.communicator(comm, "Allreduce")
    made = comm if isinstance(comm, Comm) else Comm(comm)
    if stream is None:
        made.Allreduce(sendbuf, recvbuf, op)
    else:
        made.Allreduce(sendbuf, recvbuf, op, stream=stream)


def _message(of: Array) -> Message:
    return Message(of.address, of.count, of.dtype, None, of, of.memory, of.stream)


def _allreduce_by_mpi(asked: Asked, found: One) -> None:
    """Let the MPI reduce with an operation that only it knows, on elements in memory order."""
    assert isinstance(asked.op, MPI.Op)
    given, result = found.given, found.result.array
    with asked.refusing():
        recv = _message(result)
        send = None if found.in_place else _message(given)
        left = mpi_fallback.of_messages("Allreduce", send, recv, asked.op, also=given.layout.hash)
    left.agree(asked.comm)
    MPI.Intracomm.Allreduce(asked.comm, left.send, left.recv, left.op)
