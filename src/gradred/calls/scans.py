"""Scans of arrays, blocking or not: rank r gets the reduction over the ranks up to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

from gradred import _core, ops, plans
from gradred.buffers import arrays
from gradred.buffers.arrays import Array, Result
from gradred.calls import arguments
from gradred.calls.nonblocking import ArrayRequest
from gradred.calls.reductions import Asked
from gradred.element_types import numpy_dtype
from gradred.request import run_in_stream, start

if TYPE_CHECKING:
    from mpi4py import MPI

    from gradred.ops import OpLike
    from gradred.plans import PlanLike
    from gradred.streams import StreamLike

ArrayT = TypeVar("ArrayT")
OutT = TypeVar("OutT")


@overload
def scan(
    x: ArrayT,
    op: OpLike = ...,
    *,
    exclusive: bool = ...,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayT: ...
@overload
def scan(
    x: Any,
    op: OpLike = ...,
    *,
    exclusive: bool = ...,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> OutT: ...
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
        out: as in `allreduce`.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `allreduce`.
        plan: as in `allreduce`.

    Returns:
        `out`, or a new array of the kind of `x`.

    Raises:
        gradred.UsageError: the arguments are inconsistent, or the ranks' calls differ.
        gradred.DeviceError: a GPU, its driver or its memory failed.
        gradred.PeerLost: the process of a peer has ended.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.scan(numpy.ones(2), comm=MPI.COMM_SELF)
        array([1., 1.])
        >>> gradred.scan(numpy.ones(2), exclusive=True, comm=MPI.COMM_SELF)
        array([0., 0.])
    """
    comm = arguments.communicator(comm, "scan")
    found = _described(Asked("scan", op, comm, stream, plan), x, out, exclusive)
    run_in_stream(comm, found.call, found, found.stream)
    return found.result.finish()


@overload
def iscan(
    x: ArrayT,
    op: OpLike = ...,
    *,
    exclusive: bool = ...,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayRequest[ArrayT]: ...
@overload
def iscan(
    x: Any,
    op: OpLike = ...,
    *,
    exclusive: bool = ...,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayRequest[OutT]: ...
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
    """Start a `scan` of arrays. Local: returns immediately, whatever other ranks do.

    Args:
        x: this rank's array, as in `scan`; must not change until the operation has ended.
        op: as in `iallreduce`.
        exclusive: as in `scan`.
        out: as in `iallreduce`.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `iallreduce`.
        plan: as in `allreduce`.

    Returns:
        A request whose `wait()` returns `out`, or a new array of the kind of `x`.

    Raises:
        gradred.UsageError: the arguments are inconsistent.
        gradred.DeviceError: a GPU, its driver or its memory failed.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.iscan(numpy.ones(2), comm=MPI.COMM_SELF).wait()
        array([1., 1.])
    """
    comm = arguments.communicator(comm, "iscan")
    asked = Asked("iscan", op, comm, stream, plan, blocking=False)
    found = _described(asked, x, out, exclusive)
    return ArrayRequest([(None, start(comm, found.call, found))], found.result.finish)


class _Scan(NamedTuple):
    given: Array
    result: Result
    stream: int | None
    call: _core.Call


def _described(asked: Asked, x: Any, out: Any, exclusive: bool) -> _Scan:
    """Check the arguments; on rank 0 of an exclusive scan also write the result."""
    with asked.refusing():
        rank, size = asked.comm.Get_rank(), asked.comm.Get_size()
        stream = asked.resolve_stream()
        given = arrays.describe(x, f"{asked.name} of x")
        on_device = given.memory is not None
        operation = arguments.own_operation(asked.op, given.dtype, asked.name, on_device=on_device)
        result = arguments.result(x, given, out, asked.name)
        in_place = arguments.same(given, result.array, asked.name)
        kind = "exscan" if exclusive else "scan"
        chosen = plans.resolve(asked.plan, kind, rank, size)
        if exclusive and rank == 0:
            if in_place:
                given, in_place = _on_host(given, stream), False
            _write_neutral(operation[0], result.array, stream)
        call = arguments.call(
            kind,
            given,
            result.array,
            chosen,
            operation=operation,
            in_place=in_place,
            stream=stream,
        )
    return _Scan(given, result, stream, call)


def _on_host(given: Array, stream: int | None) -> Array:
    """Copy an array to host memory, because the result replaces it."""
    bytes_of = np.empty(max(given.nbytes, 1), np.uint8)
    where = _core.placement(None, given, stream, host_waits=True)
    _core.copy_bytes(bytes_of.ctypes.data, given.address, given.nbytes, where)
    return Array(
        bytes_of.ctypes.data, given.dtype, given.shape, given.layout, writable=True, owner=bytes_of
    )


def _write_neutral(op: str, result: Array, stream: int | None) -> None:
    """Fill the result with the value that changes nothing when it is reduced with another."""
    value = _neutral(op, result.dtype)
    data = np.zeros(max(result.nbytes, 1), np.uint8)
    if value is not None:
        data[: result.nbytes] = np.full(result.count, value).view(np.uint8)
    where = _core.placement(None, result, stream, host_waits=True)
    _core.copy_bytes(result.address, data.ctypes.data, result.nbytes, where)


def _neutral(op: str, dtype: str) -> Any:
    """Return that value; None: all its bytes are zero."""
    if op not in ops.UFUNCS or op in ("sum", "avg", "premul"):
        return None
    identity = getattr(np, ops.UFUNCS[op]).identity
    kind = numpy_dtype(dtype)
    if identity is not None:
        return np.array(identity).astype(kind)[()] if identity else None
    worst = np.array(np.inf if op == "min" else -np.inf)
    if np.issubdtype(kind, np.integer):
        return kind.type(np.iinfo(kind).max if op == "min" else np.iinfo(kind).min)
    made = worst.astype(kind)[()]
    if kind == np.bool_ or np.isinf(made.astype(np.float64)):
        return np.bool_(op == "min") if kind == np.bool_ else made
    import ml_dtypes  # a type of eight bits without infinities

    limits: Any = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    return limits.max if op == "min" else limits.min
