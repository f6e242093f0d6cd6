"""Gathers and scatters of arrays, blocking or not: the blocks of all ranks on one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from gradred import _core, plans
from gradred.buffers import arrays, cuda_interface, moved_bytes
from gradred.buffers.arrays import Array, Result
from gradred.buffers.refusing import refusing
from gradred.calls import arguments
from gradred.calls.nonblocking import ArrayRequest
from gradred.errors import UsageError, UsageTypeError, explain
from gradred.request import run_in_stream, start
from gradred.streams import handle_of

if TYPE_CHECKING:
    from mpi4py import MPI

    from gradred.plans import PlanLike
    from gradred.streams import StreamLike

ArrayT = TypeVar("ArrayT")
OutT = TypeVar("OutT")


@overload
def gather(
    x: ArrayT,
    root: int = ...,
    *,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayT | None: ...
@overload
def gather(
    x: Any,
    root: int = ...,
    *,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> OutT | None: ...
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
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `allreduce`.
        plan: as in `allreduce`.

    Returns:
        On `root` `out`, or a new array of the kind of `x`, whose first axis is p times as long (of
        length p where `x` has no axes); None on other ranks.

    Raises:
        gradred.UsageError: the arguments are inconsistent, or the ranks' calls differ.
        gradred.PeerLost: the process of a peer has ended.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.gather(numpy.ones(2), comm=MPI.COMM_SELF)
        array([1., 1.])
    """
    comm = arguments.communicator(comm, "gather")
    return _run(comm, _gather(_Asked("gather", comm, stream, plan), x, root, out))


@overload
def igather(
    x: ArrayT,
    root: int = ...,
    *,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayRequest[ArrayT | None]: ...
@overload
def igather(
    x: Any,
    root: int = ...,
    *,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayRequest[OutT | None]: ...
def igather(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> ArrayRequest[Any]:
    """Start a `gather` of arrays. Local: returns immediately, whatever other ranks do.

    Args:
        x: this rank's array, as in `gather`; must not change until the operation has ended.
        root: as in `gather`.
        out: as in `gather`; the program must not use it until `wait` or `done` reports the end.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `iallreduce`.
        plan: as in `allreduce`.

    Returns:
        A request whose `wait()` returns what `gather` returns.

    Raises:
        gradred.UsageError: the arguments are inconsistent.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.igather(numpy.ones(2), comm=MPI.COMM_SELF).wait()
        array([1., 1.])
    """
    comm = arguments.communicator(comm, "igather")
    asked = _Asked("igather", comm, stream, plan, blocking=False)
    return _start(comm, _gather(asked, x, root, out))


@overload
def scatter(
    x: ArrayT,
    root: int = ...,
    *,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayT: ...
@overload
def scatter(
    x: Any,
    root: int = ...,
    *,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> OutT: ...
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
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `allreduce`.
        plan: as in `allreduce`.

    Returns:
        `out`, or a new array of the kind of `x`, whose first axis is 1/p as long as on `root`.

    Raises:
        gradred.UsageError: the arguments are inconsistent, or the ranks' calls differ.
        gradred.PeerLost: the process of a peer has ended.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.scatter(numpy.ones(2), comm=MPI.COMM_SELF)
        array([1., 1.])
    """
    comm = arguments.communicator(comm, "scatter")
    return _run(comm, _scatter(_Asked("scatter", comm, stream, plan), x, root, out))


@overload
def iscatter(
    x: ArrayT,
    root: int = ...,
    *,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayRequest[ArrayT]: ...
@overload
def iscatter(
    x: Any,
    root: int = ...,
    *,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: StreamLike = ...,
    plan: PlanLike = ...,
) -> ArrayRequest[OutT]: ...
def iscatter(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: StreamLike = None,
    plan: PlanLike = None,
) -> ArrayRequest[Any]:
    """Start a `scatter` of arrays. Local: returns immediately, whatever other ranks do.

    Args:
        x: as in `scatter`; must not change until the operation has ended.
        root: as in `scatter`.
        out: as in `scatter`; the program must not use it until `wait` or `done` reports the end.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `iallreduce`.
        plan: as in `allreduce`.

    Returns:
        A request whose `wait()` returns what `scatter` returns.

    Raises:
        gradred.UsageError: the arguments are inconsistent.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.iscatter(numpy.ones(2), comm=MPI.COMM_SELF).wait()
        array([1., 1.])
    """
    comm = arguments.communicator(comm, "iscatter")
    asked = _Asked("iscatter", comm, stream, plan, blocking=False)
    return _start(comm, _scatter(asked, x, root, out))


class _Asked(NamedTuple):
    """The arguments of such a call, except its arrays and its root."""

    name: str
    comm: MPI.Intracomm
    stream: StreamLike
    plan: PlanLike
    blocking: bool = True


class _Described(NamedTuple):
    given: Array | None
    result: Result | None
    stream: int | None
    call: _core.Call


def _run(comm: MPI.Intracomm, found: _Described) -> Any:
    run_in_stream(comm, found.call, found, found.stream)
    return None if found.result is None else found.result.finish()


def _start(comm: MPI.Intracomm, found: _Described) -> ArrayRequest[Any]:
    operation = start(comm, found.call, found)
    finish: Callable[[], Any] = (lambda: None) if found.result is None else found.result.finish
    return ArrayRequest([(None, operation)], finish)


def _gather(asked: _Asked, x: Any, root: Any, out: Any) -> _Described:
    """Check the arguments of a gather."""
    with refusing(asked.comm, blocking=asked.blocking):
        root = moved_bytes.rank_of_root(root, asked.comm, asked.name)
        given = arrays.describe(x, f"{asked.name} of x")
        arguments.require_c_order(given, asked.name)
        result = None
        if asked.comm.Get_rank() == root:
            first, rest = (given.shape[0], given.shape[1:]) if given.shape else (1, ())
            shape = (first * asked.comm.Get_size(), *rest)
            result = arguments.result(x, given, out, asked.name, shape)
            arguments.refuse_overlap(given, result.array, asked.name)
        return _made("gather", asked, root, given, result, given)


def _scatter(asked: _Asked, x: Any, root: Any, out: Any) -> _Described:
    """Check the arguments of a scatter."""
    with refusing(asked.comm, blocking=asked.blocking):
        root = moved_bytes.rank_of_root(root, asked.comm, asked.name)
        if asked.comm.Get_rank() != root:
            return _received(asked, x, root, out)
        given = arrays.describe(x, f"{asked.name} of x")
        arguments.require_c_order(given, asked.name)
        size = asked.comm.Get_size()
        if not given.shape or given.shape[0] % size != 0:
            found = f"x has shape {given.shape}: its first axis does not make {size} equal blocks"
            message = explain(asked.name, found, "Pass a multiple of the number of ranks")
            raise UsageError(message)
        shape = (given.shape[0] // size, *given.shape[1:])
        result = arguments.result(x, given, out, asked.name, shape)
        arguments.refuse_overlap(given, result.array, asked.name)
        return _made("scatter", asked, root, given, result, result.array)


def _received(asked: _Asked, x: Any, root: int, out: Any) -> _Described:
    """Check the arguments of a scatter on a rank that only receives its block."""
    model = out if x is None else x
    if model is None:
        found = "x and out are None, so that the shape and type of the block are unknown"
        remedy = "Pass an array of that shape and type as x or out"
        raise UsageTypeError(explain(asked.name, found, remedy))
    block = arrays.describe(model, f"{asked.name} of x")
    arguments.require_c_order(block, asked.name)
    result = arguments.result(model, block, out, asked.name)
    return _made("scatter", asked, root, None, result, result.array)


def _made(
    kind: str, asked: _Asked, root: int, given: Array | None, result: Result | None, block: Array
) -> _Described:
    """Make the call; `block` is this rank's block, whose layout the ranks compare."""
    comm, target = asked.comm, None if result is None else result.array
    stream = None if asked.stream is None else handle_of(asked.stream, asked.name)
    chosen = plans.resolve(asked.plan, kind, comm.Get_rank(), comm.Get_size())
    cuda_interface.finish_stream([given, target], stream)
    placed = dataclasses.replace(block, memory=None, stream=None) if target is None else target
    call = _core.Call(
        kind,
        None if given is None else given.address,
        0 if target is None else target.address,
        block.count,
        block.dtype,
        root=root,
        layout=block.layout.hash,
        plan=chosen.name,
        schedule=chosen.schedule,
        placement=_core.placement(given, placed, stream),
    )
    return _Described(given, result, stream, call)
