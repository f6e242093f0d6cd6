"""Reduce-scatter and allgather, of which an allreduce consists, and broadcast, on arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from gradred import _core, plans
from gradred.buffers import arrays, moved_bytes
from gradred.buffers.refusing import refusing
from gradred.calls import arguments
from gradred.errors import UsageError, explain
from gradred.request import run_in_stream
from gradred.streams import handle_of

if TYPE_CHECKING:
    from mpi4py import MPI

    from gradred.ops import OpLike
    from gradred.plans import PlanLike
    from gradred.streams import StreamLike

ArrayT = TypeVar("ArrayT")
OutT = TypeVar("OutT")


def _handle(stream: StreamLike, asked: str) -> int | None:
    return None if stream is None else handle_of(stream, asked)


@overload
def reduce_scatter_block(
    x: ArrayT,
    op: OpLike = ...,
    *,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayT: ...
@overload
def reduce_scatter_block(
    x: Any,
    op: OpLike = ...,
    *,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> OutT: ...
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
        op: as in `allreduce`.
        out: where the block goes; must not overlap `x`. None makes a new array.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `allreduce`.
        plan: as in `allreduce`.

    Returns:
        `out`, or a new array of the kind of `x`, whose first axis is 1/p as long.

    Raises:
        gradred.UsageError: the arguments are inconsistent, or the ranks' calls differ.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.reduce_scatter_block(numpy.ones(2), comm=MPI.COMM_SELF)
        array([1., 1.])
    """
    asked = "reduce_scatter_block"
    comm = arguments.communicator(comm, asked)
    if stream is None and plan is None:
        found = _core.reduce_scatter_array(comm, x, op, out)
        if found is not None:
            return found
    with refusing(comm):
        size = comm.Get_size()
        handle = _handle(stream, asked)
        given = arrays.describe(x, asked + " of x")
        arguments.require_c_order(given, asked)
        on_device = given.memory is not None
        operation = arguments.own_operation(op, given.dtype, asked, on_device=on_device)
        if not given.shape or given.shape[0] % size != 0:
            found = f"x has shape {given.shape}: its first axis does not make {size} equal blocks"
            raise UsageError(explain(asked, found, "Pass a multiple of the number of ranks"))
        shape = (given.shape[0] // size, *given.shape[1:])
        result = arguments.result(x, given, out, asked, shape)
        arguments.refuse_overlap(given, result.array, asked)
        chosen = plans.resolve(plan, "reduce_scatter", comm.Get_rank(), size)
        call = arguments.call(
            "reduce_scatter_block",
            given,
            result.array,
            chosen,
            operation=operation,
            stream=handle,
        )
    run_in_stream(comm, call, (given, result), handle)
    return result.finish()


@overload
def allgather(
    x: ArrayT,
    *,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayT: ...
@overload
def allgather(
    x: Any,
    *,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> OutT: ...
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
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `allreduce`.
        plan: as in `allreduce`.

    Returns:
        `out`, or a new array of the kind of `x`, whose first axis is p times as long (of length p
        where `x` has no axes).

    Raises:
        gradred.UsageError: the arguments are inconsistent, or the ranks' calls differ.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.allgather(numpy.ones(2), comm=MPI.COMM_SELF)
        array([1., 1.])
    """
    asked = "allgather"
    comm = arguments.communicator(comm, asked)
    if stream is None and plan is None:
        found = _core.allgather_array(comm, x, None, out)
        if found is not None:
            return found
    with refusing(comm):
        handle = _handle(stream, asked)
        given = arrays.describe(x, asked + " of x")
        arguments.require_c_order(given, asked)
        first, rest = (given.shape[0], given.shape[1:]) if given.shape else (1, ())
        result = arguments.result(x, given, out, asked, (first * comm.Get_size(), *rest))
        arguments.refuse_overlap(given, result.array, asked)
        chosen = plans.resolve(plan, "allgather", comm.Get_rank(), comm.Get_size())
        call = arguments.call("allgather", given, result.array, chosen, stream=handle)
    run_in_stream(comm, call, (given, result), handle)
    return result.finish()


@overload
def bcast(
    x: ArrayT,
    root: int = ...,
    *,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayT: ...
@overload
def bcast(
    x: Any,
    root: int = ...,
    *,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> OutT: ...
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
        out: where the result goes; `x` itself to receive in place. None makes a new array.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `allreduce`.
        plan: as in `allreduce`.

    Returns:
        `out`, or a new array of the kind of `x`.

    Raises:
        gradred.UsageError: the arguments are inconsistent, or the ranks' calls differ.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.bcast(numpy.arange(2), comm=MPI.COMM_SELF)
        array([0, 1])
    """
    asked = "bcast"
    comm = arguments.communicator(comm, asked)
    if stream is None and plan is None:
        found = _core.bcast_array(comm, x, root, out)
        if found is not None:
            return found
    with refusing(comm):
        handle = _handle(stream, asked)
        root = moved_bytes.rank_of_root(root, comm, asked)
        given = arrays.describe(x, asked + " of x")
        result = arguments.result(x, given, out, asked)
        chosen = plans.resolve(plan, "bcast", comm.Get_rank(), comm.Get_size())
        if not arguments.same(given, result.array, asked) and comm.Get_rank() == root:
            where = _core.placement(given, result.array, handle, host_waits=True)
            _core.copy_bytes(result.array.address, given.address, given.nbytes, where)
        call = arguments.call(
            "bcast", given, result.array, chosen, in_place=True, root=root, stream=handle
        )
    run_in_stream(comm, call, (given, result), handle)
    return result.finish()
