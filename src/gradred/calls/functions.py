"""The functions on arrays: they take any array and return the same kind of array.

What they have in common is in `one` and `many`, and in the decorators that complete docstrings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from mpi4py import MPI

from gradred import _core
from gradred.calls import arguments, docstrings, many, of_leaves, one
from gradred.calls.array_request import ArrayRequest, RequestOfOperations
from gradred.calls.one import Asked
from gradred.comm import Comm
from gradred.request import start

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, InPlace
    from typing_extensions import TypedDict, Unpack

    from gradred.leaves import LeavesLike
    from gradred.ops import OpLike
    from gradred.plans import PlanLike
    from gradred.streams import StreamLike

    class How(TypedDict, total=False):
        """The arguments that all of these functions have, for type checkers."""

        comm: MPI.Intracomm | None
        stream: StreamLike
        plan: PlanLike

    class HowOfAllreduce(How, total=False):
        """The same with what allreduces have beside."""

        leaves: LeavesLike | None
        wire: str | None


ArrayT = TypeVar("ArrayT")
OutT = TypeVar("OutT")


def _start(
    kind: str, comm: Any, x: Any, what: Any, out: Any, stream: StreamLike, plan: PlanLike
) -> ArrayRequest[Any]:
    """Start a call of this kind on `x`; `what` is its operation or root."""
    if stream is not None or plan is not None:
        return one.start(Asked.of_kind(f"i{kind}", comm, what, stream, plan), x, out)
    comm = arguments.communicator(comm, f"i{kind}")
    made = getattr(_core, kind + "_call")(comm, x, what, out, True)
    if isinstance(made, ArrayRequest):
        return made
    if made is NotImplemented:
        return one.start(Asked.of_kind(f"i{kind}", comm, what), x, out)
    call, result = made  # on devices
    return RequestOfOperations([(None, start(comm, call, (x, result)))], lambda: result)


@overload
def allreduce(
    x: ArrayT, op: OpLike = ..., *, out: None = ..., **how: Unpack[HowOfAllreduce]
) -> ArrayT: ...
@overload
def allreduce(x: Any, op: OpLike = ..., *, out: OutT, **how: Unpack[HowOfAllreduce]) -> OutT: ...
@docstrings.blocking
def allreduce(
    x: Any,
    op: OpLike = "sum",
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
    leaves: LeavesLike | None = None,
    wire: str | None = None,
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
        stream: a CUDA stream; the call is then in stream order and returns immediately. It follows
            the work that the stream has been given so far. Work that the stream is given later
            sees the result. A stream of CuPy, PyTorch, Numba or cuda.core, or an integer as in
            the array API. All ranks pass a stream, or none does. The next call on `comm` raises
            a later error of the operation. With None the call blocks, and follows the work of a
            GPU array's own stream.
        plan: the name of a plan, or a schedule of the user, or a function `(rank, size)` that
            makes one; None lets gradred choose.
        leaves: the length L of the first axis of `x`, which is a run of L arrays, the leaves. A
            fixed binary tree adds up the leaves of all ranks, those of rank 0 first. The bits of
            the result depend on the list of all leaves alone, not on how many ranks share it. A
            list has the number of each rank, if they differ; `"job"` stands for the numbers of
            `gradred.leaves_of_job`. The result has the shape of a leaf;
            `"avg"` divides by the number of leaves. The host adds up, also arrays of a GPU.
        wire: a form of `gradred.WIRES` in which float32 travels between hosts, for sums and means;
            or `"auto"`, which takes bf16 or int8 where the link between hosts is the bound. The
            result then has an error, as docs/wire.md says. The host encodes and adds up.

    Example:
        >>> gradred.allreduce(numpy.ones(3, "float32"), comm=MPI.COMM_SELF)
        array([1., 1., 1.], dtype=float32)
    """
    if leaves is not None or wire is not None:
        asked = Asked("allreduce", comm, stream, plan, op, wire=wire)
        return one.run(asked, x, out) if leaves is None else of_leaves.run(asked, x, out, leaves)
    return _core.allreduce_array(comm, x, op, out, stream, plan)


@overload
def iallreduce(
    x: ArrayT, op: OpLike = ..., *, out: None = ..., **how: Unpack[HowOfAllreduce]
) -> ArrayRequest[ArrayT]: ...
@overload
def iallreduce(
    x: Any, op: OpLike = ..., *, out: OutT, **how: Unpack[HowOfAllreduce]
) -> ArrayRequest[OutT]: ...
@docstrings.starting(allreduce)
def iallreduce(
    x: Any,
    op: OpLike = "sum",
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
    leaves: LeavesLike | None = None,
    wire: str | None = None,
) -> ArrayRequest[Any]:
    """Start an `allreduce` of arrays. Local: returns immediately, whatever other ranks do.

    All ranks get bitwise the same result. All ranks must start their operations on one communicator
    in the same order. Operations end in any order, and the program may wait in any order.

    Args:
        x: this rank's array, as in `allreduce`; must not change until the operation has ended.
        op: a name from `gradred.OPS`, `gradred.premul(factor)`, `gradred.user_op(f)` or a
            predefined MPI.Op.
        out: where the result goes, as in `allreduce`. The program must not use it until `wait` or
            `done` reports the end.
        stream: a CUDA stream whose earlier work the operation follows, as in `allreduce`. A stream
            waits for the result only by the request's `wait_stream`; this applies to this stream
            too. Make a blocking call first: the MPI carries out calls before the first of those.
        leaves: as in `allreduce`. The call adds up this rank's own leaves before it returns.
        wire: as in `allreduce`. The MPI's own calls, before the first blocking one, have none.

    Returns:
        A request whose `wait()` returns `out`, or a new array of the kind of `x`.

    Example:
        >>> request = gradred.iallreduce(numpy.ones(3, "float32"), comm=MPI.COMM_SELF)
        >>> request.wait()
        array([1., 1., 1.], dtype=float32)
    """
    if leaves is not None or wire is not None:
        asked = Asked("iallreduce", comm, stream, plan, op, wire=wire)
        if leaves is not None:
            return of_leaves.start(asked, x, out, leaves)
        return one.start(asked, x, out)
    return _start("allreduce", comm, x, op, out, stream, plan)


@docstrings.blocking
def allreduce_many(
    arrays_in: Sequence[ArrayT],
    op: OpLike = "sum",
    *,
    out: Sequence[Any] | None = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
    leaves: LeavesLike | None = None,
    wire: str | None = None,
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
        stream: a CUDA stream whose earlier work the call follows. The host waits for that work,
            since arrays are packed.
        plan: as in `allreduce`; it applies to each packed vector and each large array.
        leaves: as in `allreduce`: the length of the first axis of each array.
        wire: as in `allreduce`; all arrays are then of float32.

    Returns:
        The results in the order of the arrays.

    Example:
        >>> a, b = numpy.ones(2), numpy.arange(2)
        >>> gradred.allreduce_many([a, b], comm=MPI.COMM_SELF)
        [array([1., 1.]), array([0, 1])]
    """
    comm = arguments.communicator(comm, "allreduce_many")
    if leaves is not None:
        asked = Asked("allreduce_many", comm, stream, plan, op, wire=wire)
        return of_leaves.run_many(asked, arrays_in, out, leaves)
    if stream is None and plan is None and wire is None:
        results: list[Any] | None = _core.allreduce_list(comm, arrays_in, op, out)
        if results is not None:
            return results
    found = many.many(Asked("allreduce_many", comm, stream, plan, op, wire=wire), arrays_in, out)
    _core.run_buckets(comm, found.buckets)
    return found.finish()


@docstrings.starting(allreduce_many)
def iallreduce_many(
    arrays_in: Sequence[ArrayT],
    op: OpLike = "sum",
    *,
    out: Sequence[Any] | None = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
    leaves: LeavesLike | None = None,
    wire: str | None = None,
) -> ArrayRequest[list[ArrayT]]:
    """Start an `allreduce_many` of arrays of any types and sizes. Local: returns immediately.

    Args:
        op: as in `iallreduce`; every type must have the operation.
        stream: as in `allreduce_many`.
        plan: as in `allreduce_many`.
        leaves: as in `iallreduce`, for each array.
        wire: as in `allreduce_many`.
    """
    comm = arguments.communicator(comm, "iallreduce_many")
    asked = Asked("iallreduce_many", comm, stream, plan, op, wire=wire)
    if leaves is not None:
        return of_leaves.start_many(asked, arrays_in, out, leaves)
    found = many.many(asked, arrays_in, out)
    operations = []
    for bucket in found.buckets:
        with asked.refusing():  # packing may find no memory
            bucket.pack()
        operations.append((bucket, start(comm, bucket.call, (bucket, found.held))))
    return RequestOfOperations(operations, found.finish)


@overload
def reduce_scatter_block(
    x: ArrayT, op: OpLike = ..., *, out: None = ..., **how: Unpack[How]
) -> ArrayT: ...
@overload
def reduce_scatter_block(x: Any, op: OpLike = ..., *, out: OutT, **how: Unpack[How]) -> OutT: ...
@docstrings.blocking
def reduce_scatter_block(
    x: Any,
    op: OpLike = "sum",
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> Any:
    """Reduce the arrays of all ranks; rank r gets block r of the result. Blocking.

    Args:
        x: this rank's array in C order. The length of its first axis must be a multiple of the
            number of ranks p.
        out: where the block goes; must not overlap `x`. None makes a new array.

    Returns:
        `out`, or a new array of the kind of `x`, whose first axis is 1/p as long.

    Example:
        >>> gradred.reduce_scatter_block(numpy.ones(2), comm=MPI.COMM_SELF)
        array([1., 1.])
    """
    return _core.reduce_scatter_block_array(comm, x, op, out, stream, plan)


@overload
def allgather(x: ArrayT, *, out: None = ..., **how: Unpack[How]) -> ArrayT: ...
@overload
def allgather(x: Any, *, out: OutT, **how: Unpack[How]) -> OutT: ...
@docstrings.blocking
def allgather(
    x: Any,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> Any:
    """Concatenate the arrays of all ranks along the first axis, on every rank. Blocking.

    Args:
        x: this rank's array in C order, of one shape and type on all ranks.
        out: where the result goes; must not overlap `x`. None makes a new array.

    Returns:
        `out`, or a new array of the kind of `x`, whose first axis is p times as long (of length p
        where `x` has no axes).

    Example:
        >>> gradred.allgather(numpy.ones(2), comm=MPI.COMM_SELF)
        array([1., 1.])
    """
    return _core.allgather_array(comm, x, None, out, stream, plan)


@overload
def bcast(x: ArrayT, root: int = ..., *, out: None = ..., **how: Unpack[How]) -> ArrayT: ...
@overload
def bcast(x: Any, root: int = ..., *, out: OutT, **how: Unpack[How]) -> OutT: ...
@docstrings.blocking
def bcast(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> Any:
    """Copy the array of rank `root` to every rank. Blocks until it is there.

    Args:
        x: on `root` the array to send. On other ranks an array of the same shape, type and order
            of axes; its elements are not used.
        root: the rank that sends its array.
        out: where the result goes; `x` itself to receive in place.

    Returns:
        `out`; without it on `root` `x` itself (as mpi4py's `bcast`), elsewhere a new array.

    Example:
        >>> gradred.bcast(numpy.arange(2), comm=MPI.COMM_SELF)
        array([0, 1])
    """
    return _core.bcast_array(comm, x, root, out, stream, plan)


@overload
def gather(x: ArrayT, root: int = ..., *, out: None = ..., **how: Unpack[How]) -> ArrayT | None: ...
@overload
def gather(x: Any, root: int = ..., *, out: OutT, **how: Unpack[How]) -> OutT | None: ...
@docstrings.blocking
def gather(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> Any:
    """Concatenate the arrays of all ranks along the first axis, on rank `root`. Blocking.

    Args:
        x: this rank's array in C order, of one shape and type on all ranks.
        root: the rank that gets the result.
        out: on `root` where the result goes; must not overlap `x`. None makes a new array. Other
            ranks do not use it.

    Returns:
        On `root` `out`, or a new array of the kind of `x`, whose first axis is p times as long (of
        length p where `x` has no axes); None on other ranks.

    Example:
        >>> gradred.gather(numpy.ones(2), comm=MPI.COMM_SELF)
        array([1., 1.])
    """
    return _core.gather_array(comm, x, root, out, stream, plan)


@overload
def igather(
    x: ArrayT, root: int = ..., *, out: None = ..., **how: Unpack[How]
) -> ArrayRequest[ArrayT | None]: ...
@overload
def igather(
    x: Any, root: int = ..., *, out: OutT, **how: Unpack[How]
) -> ArrayRequest[OutT | None]: ...
@docstrings.starting(gather)
def igather(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> ArrayRequest[Any]:
    """Start a `gather` of arrays. Local: returns immediately, whatever other ranks do."""
    return _start("gather", comm, x, root, out, stream, plan)


@overload
def scatter(x: ArrayT, root: int = ..., *, out: None = ..., **how: Unpack[How]) -> ArrayT: ...
@overload
def scatter(x: Any, root: int = ..., *, out: OutT, **how: Unpack[How]) -> OutT: ...
@docstrings.blocking
def scatter(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> Any:
    """Cut the array of rank `root` into blocks along the first axis; rank r gets block r. Blocking.

    Args:
        x: on `root` an array in C order, the length of whose first axis is a multiple of the number
            of ranks p. On other ranks an array of the shape and type of one block, whose elements
            are not used; it may be None if `out` is given.
        root: the rank whose array is cut.
        out: where this rank's block goes; must not overlap `x` on `root`. None makes a new array.

    Returns:
        `out`, or a new array of the kind of `x`, whose first axis is 1/p as long as on `root`.

    Example:
        >>> gradred.scatter(numpy.ones(2), comm=MPI.COMM_SELF)
        array([1., 1.])
    """
    return _core.scatter_array(comm, x, root, out, stream, plan)


@overload
def iscatter(
    x: ArrayT, root: int = ..., *, out: None = ..., **how: Unpack[How]
) -> ArrayRequest[ArrayT]: ...
@overload
def iscatter(x: Any, root: int = ..., *, out: OutT, **how: Unpack[How]) -> ArrayRequest[OutT]: ...
@docstrings.starting(scatter)
def iscatter(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> ArrayRequest[Any]:
    """Start a `scatter` of arrays. Local: returns immediately, whatever other ranks do."""
    return _start("scatter", comm, x, root, out, stream, plan)


@overload
def scan(
    x: ArrayT, op: OpLike = ..., *, exclusive: bool = ..., out: None = ..., **how: Unpack[How]
) -> ArrayT: ...
@overload
def scan(
    x: Any, op: OpLike = ..., *, exclusive: bool = ..., out: OutT, **how: Unpack[How]
) -> OutT: ...
@docstrings.blocking
def scan(
    x: Any,
    op: OpLike = "sum",
    *,
    exclusive: bool = False,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> Any:
    """Reduce the arrays of the ranks up to this one elementwise (a prefix sum). Blocking.

    Rank r gets the reduction of the arrays of ranks 0 to r, in this order; with `exclusive` of
    ranks 0 to r - 1. For example, rows that each rank writes to a common file begin at the
    exclusive sum of the numbers of rows.

    Args:
        x: this rank's array. It is unchanged unless it is `out`. Any dense array; shape, type and
            order of the axes must be the same on all ranks.
        op: as in `allreduce`. `"avg"` is the mean of the arrays that are reduced.
        exclusive: whether a rank's own array is left out. Rank 0, which then has nothing to
            reduce, gets the value that changes nothing: 0 for sums and averages, 1 for products,
            the largest value of the type for `"min"`, the smallest for `"max"`, zeros for a
            function of the program.

    Example:
        >>> gradred.scan(numpy.ones(2), comm=MPI.COMM_SELF)
        array([1., 1.])
        >>> gradred.scan(numpy.ones(2), exclusive=True, comm=MPI.COMM_SELF)
        array([0., 0.])
    """
    run = _core.exscan_array if exclusive else _core.scan_array
    return run(comm, x, op, out, stream, plan)


@overload
def iscan(
    x: ArrayT, op: OpLike = ..., *, exclusive: bool = ..., out: None = ..., **how: Unpack[How]
) -> ArrayRequest[ArrayT]: ...
@overload
def iscan(
    x: Any, op: OpLike = ..., *, exclusive: bool = ..., out: OutT, **how: Unpack[How]
) -> ArrayRequest[OutT]: ...
@docstrings.starting(scan)
def iscan(
    x: Any,
    op: OpLike = "sum",
    *,
    exclusive: bool = False,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> ArrayRequest[Any]:
    """Start a `scan` of arrays. Local: returns immediately, whatever other ranks do."""
    return _start("exscan" if exclusive else "scan", comm, x, op, out, stream, plan)


@docstrings.blocking
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

    Example:
        >>> x = numpy.ones(3)
        >>> gradred.Allreduce(MPI.IN_PLACE, x, comm=MPI.COMM_SELF)
    """
    comm = comm if isinstance(comm, MPI.Intracomm) else arguments.communicator(comm, "Allreduce")
    if stream is None:
        _core.allreduce_on(comm, sendbuf, recvbuf, op)
    else:
        made = comm if isinstance(comm, Comm) else Comm(comm)
        made.Allreduce(sendbuf, recvbuf, op, stream=stream)
