"""Allreduce of arrays: any array in, the same kind of array out."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from gradred import _core, arguments, arrays, handed, plans, typemaps
from gradred.arrays import Array
from gradred.comm import Comm
from gradred.messages import Message
from gradred.refusing import refusing

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, InPlace

    from gradred.ops import OpLike
    from gradred.plans import PlanLike

ArrayT = TypeVar("ArrayT")
OutT = TypeVar("OutT")


@overload
def allreduce(
    x: ArrayT,
    op: OpLike = ...,
    *,
    out: None = ...,
    comm: MPI.Intracomm | None = ...,
    stream: None = ...,
    plan: PlanLike = ...,
) -> ArrayT: ...
@overload
def allreduce(
    x: Any,
    op: OpLike = ...,
    *,
    out: OutT,
    comm: MPI.Intracomm | None = ...,
    stream: None = ...,
    plan: PlanLike = ...,
) -> OutT: ...
def allreduce(
    x: Any,
    op: OpLike = "sum",
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    stream: None = None,
    plan: PlanLike = None,
) -> Any:
    """Reduce the arrays of all ranks elementwise; every rank gets the result.

    Blocks until the result is there; all ranks get bitwise the same.

    Args:
        x: this rank's array, unchanged unless it is `out`. Any dense array in host memory; shape,
            type and order of the axes must be the same on all ranks.
        op: a name from `gradred.OPS`, `gradred.premul(factor)` or an MPI.Op.
        out: where the result goes: a writable array of that shape, type and order, `x` itself to
            reduce in place. None makes a new one.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: for GPU arrays, which this build does not serve: None.
        plan: the name of a plan, or a schedule of one's own, or a function `(rank, size)` that
            makes it; None lets gradred choose.

    Returns:
        `out`, or a new array of the kind of `x`.

    Raises:
        gradred.UsageError: the arguments do not fit each other, or the ranks' calls differ.
        gradred.DeviceError: an array is in GPU memory.
        gradred.PeerLost: the process of a peer has ended.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> gradred.allreduce(numpy.ones(3, "float32"), comm=MPI.COMM_SELF)
        array([1., 1., 1.], dtype=float32)
    """
    asked = "allreduce"
    comm = arguments.communicator(comm, asked)
    with refusing(comm):
        arguments.refuse_stream(stream, asked)
        given = arrays.describe(x, asked + " of x")
        found = arguments.operation(op, given.dtype, asked)
        result = arguments.result(x, given, out, asked)
        send = None if arguments.same(given, result.array, asked) else given.address
        chosen = plans.resolve(plan, "allreduce", comm.Get_rank(), comm.Get_size())
    if found is None:
        _allreduce_by_mpi(comm, given, result.array, send is None, op)
        return result.finish()
    call = _core.Call(
        "allreduce",
        send,
        result.array.address,
        given.count,
        given.dtype,
        found[0],
        factor=found[1],
        layout=arguments.with_plan(given.layout.hash, chosen),
        plan=chosen.name,
        schedule=chosen.schedule,
    )
    _core.run(comm, call)
    return result.finish()


def allreduce_many(
    arrays_in: Sequence[ArrayT],
    op: OpLike = "sum",
    *,
    out: Sequence[Any] | None = None,
    comm: MPI.Intracomm | None = None,
    stream: None = None,
    plan: PlanLike = None,
) -> list[ArrayT]:
    """Reduce several arrays of any types and sizes at once: cheaper than one after the other.

    Arrays of one type travel together. Blocks until all results are there.

    Args:
        arrays_in: this rank's arrays; number, shapes, types and orders of axes must be the same
            on all ranks.
        op: as in `allreduce`; it must suit every type.
        out: an array for each result, or None for new ones. Results share no memory with each
            other, nor with any array but their own, which they may replace.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.
        stream: as in `allreduce`.
        plan: as in `allreduce`; for the vector of each type.

    Returns:
        The results in the order of the arrays.

    Raises:
        gradred.UsageError: the arguments do not fit each other, or the ranks' calls differ.
        gradred.DeviceError: an array is in GPU memory.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> a, b = numpy.ones(2), numpy.arange(2)
        >>> gradred.allreduce_many([a, b], comm=MPI.COMM_SELF)
        [array([1., 1.]), array([0, 1])]
    """
    asked = "allreduce_many"
    comm = arguments.communicator(comm, asked)
    with refusing(comm):
        arguments.refuse_stream(stream, asked)
        arguments.require_list(arrays_in, f"{asked} of arrays_in")
        given = [arrays.describe(x, f"{asked} of array {i}") for i, x in enumerate(arrays_in)]
        outs = arguments.outs(out, len(given), asked)
        results = [
            arguments.result(x, each, target, f"{asked}, array {i}")
            for i, (x, each, target) in enumerate(zip(arrays_in, given, outs, strict=True))
        ]
        if out is not None:  # new arrays share no memory with any other
            arguments.require_apart(given, [result.array for result in results], asked)
        chosen = plans.resolve(plan, "allreduce", comm.Get_rank(), comm.Get_size())
        layout = arguments.with_plan(
            typemaps.hash_of([(each.dtype, each.layout.hash) for each in given]), chosen
        )
        # A list without arrays announces itself too, or ranks with another list would wait for it.
        dtypes = dict.fromkeys([each.dtype for each in given] or ["uint8"])
        operations = {dtype: arguments.own_operation(op, dtype, asked) for dtype in dtypes}
    for dtype, (name, factor) in operations.items():
        members = [i for i, each in enumerate(given) if each.dtype == dtype]
        with refusing(comm):  # there may be no memory to pack them in
            vector = _Vector([given[i] for i in members], [results[i].array for i in members])
        call = _core.Call(
            "allreduce",
            vector.send,
            vector.recv,
            sum(given[i].count for i in members),
            dtype,
            name,
            factor=factor,
            layout=layout,
            plan=chosen.name,
            schedule=chosen.schedule,
        )
        _core.run(comm, call)
        vector.unpack()
    return [result.finish() for result in results]


def Allreduce(  # noqa: N802 (MPI's own name)
    sendbuf: BufSpec | InPlace,
    recvbuf: BufSpec,
    op: OpLike = MPI.SUM,
    comm: MPI.Intracomm | None = None,
) -> None:
    """`comm.Allreduce` of mpi4py by gradred, on any intracommunicator.

    Args:
        sendbuf: this rank's input, left unchanged: an array or an mpi4py buffer specification;
            `MPI.IN_PLACE` (or None) takes it from `recvbuf`.
        recvbuf: where the result goes: as many elements of the same type, writable.
        op: an MPI.Op, a name from `gradred.OPS`, or `gradred.premul(factor)`.
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.

    Raises:
        gradred.UsageError: the arguments do not fit each other, or the ranks' calls differ.
        gradred.PeerLost: the process of a peer has ended.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> x = numpy.ones(3)
        >>> gradred.Allreduce(MPI.IN_PLACE, x, comm=MPI.COMM_SELF)
    """
    comm = arguments.communicator(comm, "Allreduce")
    (comm if isinstance(comm, Comm) else Comm(comm)).Allreduce(sendbuf, recvbuf, op)


def _allreduce_by_mpi(
    comm: MPI.Intracomm, given: Array, result: Array, in_place: bool, op: OpLike
) -> None:
    """The user's own operation, on the elements in the order of memory."""
    assert isinstance(op, MPI.Op)
    with refusing(comm):
        recv = Message(result.address, result.count, result.dtype, None, result)
        send = None if in_place else dataclasses.replace(recv, address=given.address, owner=given)
        left = handed.of_messages("allreduce", send, recv, op, also=given.layout.hash)
    left.agree(comm)
    MPI.Intracomm.Allreduce(comm, left.send, left.recv, left.op)


class _Vector:
    """Several arrays of one type as one vector: where they lie if it is only one, else packed."""

    def __init__(self, given: Sequence[Array], results: Sequence[Array]) -> None:
        self._results = results
        self._packed: npt.NDArray[np.uint8] | None = None
        self.send: int | None
        if len(given) == 1:
            self.recv = results[0].address
            self.send = None if given[0].address == self.recv else given[0].address
            return
        self._packed = np.empty(sum(each.nbytes for each in given), np.uint8)
        self.send, self.recv = None, self._packed.__array_interface__["data"][0]
        position = self.recv
        for each in given:
            ctypes.memmove(position, each.address, each.nbytes)
            position += each.nbytes

    def unpack(self) -> None:
        """Bring the results to where they belong."""
        if self._packed is None:
            return
        position = self.recv
        for each in self._results:
            ctypes.memmove(each.address, position, each.nbytes)
            position += each.nbytes
