"""Allreduces of arrays, blocking or not: from their arguments to calls of the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gradred import _core, plans, streams
from gradred.buffers import arrays, cuda_interface
from gradred.buffers.arrays import Array, Result
from gradred.buffers.refusing import refusing
from gradred.calls import arguments

if TYPE_CHECKING:
    from mpi4py import MPI

    from gradred.ops import OpLike
    from gradred.plans import PlanLike
    from gradred.streams import StreamLike


class Asked(NamedTuple):
    """The arguments of such a call, except its arrays."""

    name: str
    op: OpLike
    comm: MPI.Intracomm
    stream: StreamLike
    plan: PlanLike
    blocking: bool = True

    def refusing(self) -> refusing:
        """Return the context for all code that checks the arguments."""
        return refusing(self.comm, blocking=self.blocking)

    def resolve_stream(self) -> int | None:
        """Return the driver's handle of the stream, or None without a stream."""
        return None if self.stream is None else streams.handle_of(self.stream, self.name)

    def resolve_plan(self) -> plans.Plan:
        """Return the plan, checked."""
        return plans.resolve(self.plan, "allreduce", self.comm.Get_rank(), self.comm.Get_size())


class One(NamedTuple):
    """An allreduce of one array."""

    given: Array
    result: Result
    in_place: bool
    stream: int | None
    call: _core.Call | None
    """The call of gradred. None: only the MPI knows the operation."""


def one(asked: Asked, x: Any, out: Any) -> One:
    """Check the arguments of an allreduce of `x`; only a blocking one may leave it to the MPI."""
    with asked.refusing():
        stream = asked.resolve_stream()
        given = arrays.describe(x, f"{asked.name} of x")
        understand = arguments.operation if asked.blocking else arguments.own_operation
        on_device = given.memory is not None
        found = understand(asked.op, given.dtype, asked.name, on_device=on_device)
        result = arguments.result(x, given, out, asked.name)
        in_place = arguments.same(given, result.array, asked.name)
        chosen = asked.resolve_plan()
        call = None
        if found is not None:
            call = arguments.call(
                "allreduce",
                given,
                result.array,
                chosen,
                operation=found,
                in_place=in_place,
                stream=stream,
            )
        else:
            cuda_interface.finish_stream([given], stream)
    return One(given, result, in_place, stream, call)


class Many(NamedTuple):
    """An allreduce of several arrays: small ones of a type are packed, large ones are not."""

    buckets: list[_core.Bucket]
    finish: Callable[[], list[Any]]
    """Returns the results, once all buckets are unpacked."""
    held: Any
    """The objects to keep alive as long as the buckets are used."""


def many(asked: Asked, arrays_in: Sequence[Any], out: Sequence[Any] | None) -> Many:
    """Check the arguments of an allreduce of several arrays."""
    name = asked.name
    with asked.refusing():
        stream = asked.resolve_stream()
        plain = None
        if type(arrays_in) is list and stream is None:
            plain = _core.plain_pieces(arrays_in, out)
        on_device = False
        if plain is None:
            pieces, finish, held = _described(asked, arrays_in, out, stream)
            on_device = any(each.memory is not None for each in held[0])
        else:
            pieces, results = plain
            finish, held = lambda: results, (arrays_in, results)
        chosen = asked.resolve_plan()
        # A call without arrays announces itself too. Otherwise ranks with arrays would wait for it.
        operations = {
            dtype: arguments.own_operation(asked.op, dtype, name, on_device=on_device)
            for dtype in pieces.dtypes or ["uint8"]
        }
    buckets = _core.make_buckets(
        asked.comm,
        pieces,
        operations,
        layout=pieces.hash,
        plan=chosen.name,
        schedule=chosen.schedule,
        blocking=asked.blocking,
    )
    return Many(buckets, finish, held)


def _described(
    asked: Asked, arrays_in: Sequence[Any], out: Sequence[Any] | None, stream: int | None
) -> tuple[_core.Pieces, Callable[[], list[Any]], Any]:
    """Return the pieces of arrays of any kind, how to get the results, and what to keep alive."""
    name = asked.name
    arguments.require_list(arrays_in, f"{name} of arrays_in")
    given = [arrays.describe(x, f"{name} of array {i}") for i, x in enumerate(arrays_in)]
    outs = arguments.outs(out, len(given), name)
    results = [
        arguments.result(x, each, target, f"{name}, array {i}")
        for i, (x, each, target) in enumerate(zip(arrays_in, given, outs, strict=True))
    ]
    cuda_interface.finish_stream([*given, *(result.array for result in results)], stream)
    pieces = _core.Pieces(
        [
            (
                each.address,
                result.array.address,
                each.count,
                each.dtype,
                each.layout.hash,
                _core.placement(each, result.array, stream, host_waits=True),
            )
            for each, result in zip(given, results, strict=True)
        ]
    )
    arguments.require_apart(pieces, name)
    return pieces, lambda: [result.finish() for result in results], (given, results)
