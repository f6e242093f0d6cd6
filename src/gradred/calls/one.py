"""Calls on one array: from the arguments of a function to a call of the core, and its result.

The core's table of kinds (csrc/base/kinds.h) says of each kind whether it reduces, whether it has a
root, and whether ranks give or get a block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from gradred import _core, plans, request, streams, wire
from gradred.buffers import arrays, cuda_interface, moved_bytes, mpi_fallback
from gradred.buffers.arrays import Array
from gradred.buffers.messages import ROWS, Message
from gradred.buffers.refusing import refusing
from gradred.calls import arguments, neutral
from gradred.calls.array_request import ArrayRequest, RequestOfOperations
from gradred.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    from gradred.ops import OpLike
    from gradred.plans import PlanLike
    from gradred.streams import StreamLike


@dataclasses.dataclass
class Asked:
    """The arguments of a function on arrays, except the arrays.

    A function is called like its kind of call, with an "i" in front if it only starts the call.
    """

    name: str
    given_comm: dataclasses.InitVar[MPI.Intracomm | None]
    stream: StreamLike
    plan: PlanLike
    op: OpLike = "sum"
    root: Any = 0
    wire: str | None = None
    exclusive: bool = False
    """Whether rank 0 of a scan has nothing to reduce."""

    @classmethod
    def of_kind(
        cls, kind: str, comm: Any, what: Any, stream: StreamLike = None, plan: PlanLike = None
    ) -> Asked:
        """Make those of a kind's function, or of the one that starts it: `what` is op or root."""
        row = ROWS[kind if kind in ROWS else kind.removeprefix("i")]
        op, root = (what if row["reduces"] else "sum"), (what if row["has_root"] else 0)
        return cls(kind.replace("ex", ""), comm, stream, plan, op, root, exclusive="ex" in kind)

    def __post_init__(self, given_comm: MPI.Intracomm | None) -> None:
        self.comm = arguments.communicator(given_comm, self.name)
        self.blocking = not self.name.startswith("i")
        kind = self.name.removeprefix("i").removesuffix("_many")
        self.kind = f"ex{kind}" if self.exclusive else kind
        self.row = ROWS[self.kind]

    def refusing(self) -> refusing:
        """Return the context for all code that checks the arguments."""
        return refusing(self.comm, blocking=self.blocking)

    def resolve_stream(self) -> int | None:
        """Return the driver's handle of the stream, or None without a stream."""
        return None if self.stream is None else streams.handle_of(self.stream, self.name)

    def resolve_plan(self) -> plans.Plan:
        """Return the plan, checked."""
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        return plans.resolve(self.plan, self.row["schedules"], rank, size)


class One(NamedTuple):
    """A call on one array."""

    source: Array | None
    """None: this rank gives nothing, or what the memory of the result holds."""
    target: Array | None
    """The result; None: this rank gets none."""
    stream: int | None
    call: _core.Call | None
    """None: only the MPI knows the operation."""
    finish: Callable[[], Any]
    """Returns the result, or None on a rank that gets none."""


def run(asked: Asked, x: Any, out: Any) -> Any:
    """Carry out a call on `x`, and return the result."""
    found = one(asked, x, out)
    if found.call is None:
        _run_by_mpi(asked, found)
    else:
        request.run_in_stream(asked.comm, found.call, found, found.stream)
    return found.finish()


def look_closer(
    kind: str, comm: Any, x: Any, what: Any, out: Any, stream: StreamLike, plan: PlanLike
) -> Any:
    """Carry out a call of this kind that the extension leaves to Python."""
    return run(Asked.of_kind(kind, comm, what, stream, plan), x, out)


_core.use_array_functions(look_closer, arguments.world)


def start(asked: Asked, x: Any, out: Any) -> ArrayRequest[Any]:
    """Start a call on `x`."""
    found = one(asked, x, out)
    assert found.call is not None  # only a blocking call may be left to the MPI
    operation = request.start(asked.comm, found.call, found)
    return RequestOfOperations([(None, operation)], found.finish)


def one(asked: Asked, x: Any, out: Any) -> One:
    """Check the arguments of a call on `x`, and make the call."""
    name, kind, row = asked.name, asked.kind, asked.row
    with refusing(asked.comm, blocking=asked.blocking):
        stream = asked.resolve_stream()
        root = moved_bytes.rank_of_root(asked.root, asked.comm, name) if row["has_root"] else 0
        at_root = not row["has_root"] or asked.comm.Get_rank() == root
        gives, gets = at_root or kind != "scatter", at_root or kind != "gather"
        if x is None and not gives:
            x = _required(out, name)
        given = arrays.describe(x, f"{name} of x")
        if row["has_blocks"]:
            arguments.require_c_order(given, name)
        operation = _operation(asked, given) if row["reduces"] else ("sum", 1.0)
        form = wire.require(asked.wire, given.dtype, operation and operation[0], name)
        source, target, finish = given if gives else None, None, lambda: None
        if gets:
            shape = _shape(asked, given) if gives and row["has_blocks"] else None
            if kind == "bcast" and at_root and out is None:
                target, finish = given, lambda: x
            else:
                target, finish = arguments.result(x, given, out, name, shape)
        chosen = asked.resolve_plan()
        if gives and target is not None:
            source = _source(asked, given, target, at_root, stream)
            if asked.exclusive and operation and asked.comm.Get_rank() == 0:
                source = source or neutral.on_host(given, stream)
                neutral.write(operation[0], target, stream)
        cuda_interface.finish_stream([source, target], stream)
        call = None
        if operation is not None:
            where = target or dataclasses.replace(given, memory=None, stream=None)
            compared = target if target is not None and kind == "scatter" else given
            call = _core.Call(
                kind,
                None if source is None else source.address,
                0 if target is None else target.address,
                given.count if target is None else min(given.count, target.count),
                given.dtype,
                operation[0],
                factor=operation[1],
                root=root,
                layout=compared.layout.hash,
                plan=chosen.name,
                schedule=chosen.schedule,
                wire=form,
                placement=_core.placement(source, where, stream),
            )
    return One(source, target, stream, call, finish)


def _required(out: Any, name: str) -> Any:
    """Return `out`, whose shape and type are those of the block that this rank gets."""
    if out is None:
        found = "x and out are None, so that the shape and type of the block are unknown"
        raise UsageTypeError(name, found, "Pass an array of that shape and type as x or out")
    return out


def _operation(asked: Asked, given: Array) -> tuple[str, float] | None:
    may_leave_it = asked.blocking and asked.kind == "allreduce"
    understand = arguments.operation if may_leave_it else arguments.own_operation
    return understand(asked.op, given.dtype, asked.name, on_device=given.memory is not None)


def _shape(asked: Asked, given: Array) -> tuple[int, ...]:
    """Return the shape of a result that has all ranks' blocks, or one block."""
    size = asked.comm.Get_size()
    first, rest = (given.shape[0], given.shape[1:]) if given.shape else (1, ())
    if asked.row["gives_block"]:
        return (first * size, *rest)
    if not given.shape or first % size != 0:
        found = f"x has shape {given.shape}: its first axis does not make {size} equal blocks"
        raise UsageError(asked.name, found, "Pass a multiple of the number of ranks")
    return (first // size, *rest)


def _source(
    asked: Asked, given: Array, target: Array, at_root: bool, stream: int | None
) -> Array | None:
    """Return the input, None if the result's memory holds it; UsageError if they overlap."""
    in_place = given.address == target.address and not asked.row["has_blocks"]
    if not in_place:
        arguments.refuse_overlap(given, target, asked.name)
    if asked.kind != "bcast":
        return None if in_place else given
    if at_root and not in_place:
        where = _core.placement(given, target, stream, host_waits=True)
        _core.copy_bytes(target.address, given.address, given.nbytes, where)
    return None


def _run_by_mpi(asked: Asked, found: One) -> None:
    """Let the MPI reduce with an operation that only it knows, on elements in memory order."""
    assert isinstance(asked.op, MPI.Op)
    assert found.target is not None
    with asked.refusing():
        recv = _message(found.target)
        send = None if found.source is None else _message(found.source)
        also = found.target.layout.hash
        left = mpi_fallback.of_messages("Allreduce", asked.comm, send, recv, asked.op, also=also)
    left.agree(asked.comm)
    MPI.Intracomm.Allreduce(asked.comm, left.send, left.recv, left.op)


def _message(of: Array) -> Message:
    return Message(of.address, of.count, of.dtype, None, of, of.memory, of.stream)
