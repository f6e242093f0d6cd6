"""What an allreduce of arrays is made of, blocking or not: its arguments as calls of the core."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradred import _core, plans
from gradred.buffers import arrays, typemaps
from gradred.buffers.arrays import Array, Result
from gradred.buffers.refusing import refusing
from gradred.calls import arguments

if TYPE_CHECKING:
    from mpi4py import MPI

    from gradred.ops import OpLike
    from gradred.plans import PlanLike


class Asked(NamedTuple):
    """What every such call is asked, beside its arrays."""

    name: str
    op: OpLike
    comm: MPI.Intracomm
    stream: None
    plan: PlanLike
    blocking: bool = True

    def refusing(self) -> refusing:
        """Around all that looks at the arguments."""
        return refusing(self.comm, blocking=self.blocking)

    def resolve_plan(self) -> plans.Plan:
        """The plan by name or schedule, checked."""
        return plans.resolve(self.plan, "allreduce", self.comm.Get_rank(), self.comm.Get_size())


class One(NamedTuple):
    """An allreduce of one array."""

    given: Array
    result: Result
    in_place: bool
    call: _core.Call | None
    """None for an operation that the MPI alone knows."""


def one(asked: Asked, x: Any, out: Any) -> One:
    """Check the arguments of an allreduce of `x`; only a blocking one leaves it to the MPI."""
    with asked.refusing():
        arguments.refuse_stream(asked.stream, asked.name)
        given = arrays.describe(x, f"{asked.name} of x")
        understand = arguments.operation if asked.blocking else arguments.own_operation
        found = understand(asked.op, given.dtype, asked.name)
        result = arguments.result(x, given, out, asked.name)
        in_place = arguments.same(given, result.array, asked.name)
        chosen = asked.resolve_plan()
    if found is None:
        return One(given, result, in_place, None)
    call = arguments.call(
        "allreduce", given, result.array, chosen, operation=found, in_place=in_place
    )
    return One(given, result, in_place, call)


class Many(NamedTuple):
    """An allreduce of several arrays: a vector for each type."""

    asked: Asked
    given: list[Array]
    results: list[Result]
    operations: dict[str, tuple[str, float]]
    """By type, in the order in which the types come first."""
    layout: int
    plan: plans.Plan

    def calls(self) -> Iterator[tuple[_core.Call, Vector]]:
        """The calls in their order, each when its vector is packed."""
        for dtype, (name, factor) in self.operations.items():
            members = [i for i, each in enumerate(self.given) if each.dtype == dtype]
            with self.asked.refusing():  # there may be no memory to pack them in
                vector = Vector(
                    [self.given[i] for i in members], [self.results[i].array for i in members]
                )
            call = _core.Call(
                "allreduce",
                vector.send,
                vector.recv,
                sum(self.given[i].count for i in members),
                dtype,
                name,
                factor=factor,
                layout=self.layout,
                plan=self.plan.name,
                schedule=self.plan.schedule,
            )
            yield call, vector

    def finish(self) -> list[Any]:
        """The results, once all vectors are unpacked."""
        return [result.finish() for result in self.results]


def many(asked: Asked, arrays_in: Sequence[Any], out: Sequence[Any] | None) -> Many:
    """Check the arguments of an allreduce of several arrays."""
    name = asked.name
    with asked.refusing():
        arguments.refuse_stream(asked.stream, name)
        arguments.require_list(arrays_in, f"{name} of arrays_in")
        given = [arrays.describe(x, f"{name} of array {i}") for i, x in enumerate(arrays_in)]
        outs = arguments.outs(out, len(given), name)
        results = [
            arguments.result(x, each, target, f"{name}, array {i}")
            for i, (x, each, target) in enumerate(zip(arrays_in, given, outs, strict=True))
        ]
        if out is not None:  # new arrays share no memory with any other
            arguments.require_apart(given, [result.array for result in results], name)
        chosen = asked.resolve_plan()
        layout = arguments.with_plan(
            typemaps.hash_of([(each.dtype, each.layout.hash) for each in given]), chosen
        )
        # A list without arrays announces itself too, or ranks with another list would wait for it.
        dtypes = dict.fromkeys([each.dtype for each in given] or ["uint8"])
        operations = {dtype: arguments.own_operation(asked.op, dtype, name) for dtype in dtypes}
    return Many(asked, given, results, operations, layout, chosen)


class Vector:
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
