"""Checks and conversions of arguments that all array calls share."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from gradred import _core, ops
from gradred.buffers import arrays
from gradred.buffers.arrays import Array, Result
from gradred.comm import Comm
from gradred.element_types import ITEMSIZES
from gradred.errors import UsageError, UsageTypeError, type_of

if TYPE_CHECKING:
    from gradred.ops import OpLike


# The communicator of calls that name none.
world = functools.cache(functools.partial(Comm, MPI.COMM_WORLD))


def communicator(comm: Any, asked: str) -> MPI.Intracomm:
    """Return `comm`, or COMM_WORLD for None; UsageTypeError for anything else."""
    if comm is None:
        return world()
    if not isinstance(comm, MPI.Intracomm):
        null = isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL
        found = "comm is null" if null else f"comm is {type_of(comm)}"
        raise UsageTypeError(asked, found, "Pass an MPI.Intracomm, or None for COMM_WORLD")
    return comm  # may also be a plain MPI.Intracomm


def operation(
    op: OpLike, dtype: str, asked: str, *, on_device: bool = False
) -> tuple[str, float] | None:
    """Return the operation's name and factor, checked for the type; None for one of the MPI's."""
    found = ops.resolve(op)
    if found is not None:
        ops.require(found[0], dtype, f"{asked} of {dtype}", on_device=on_device)
    return found


def own_operation(
    op: OpLike, dtype: str, asked: str, *, on_device: bool = False
) -> tuple[str, float]:
    """Return the operation's name and factor; UsageError if only the MPI knows the operation."""
    found = operation(op, dtype, asked, on_device=on_device)
    if found is None:
        remedy = f"Use one of {', '.join(ops.OPS)} here, or allreduce"
        raise UsageError(asked, "the MPI alone knows this operation", remedy)
    return found


def require_c_order(given: Array, asked: str) -> None:
    """Raise UsageError unless the axes are in C order."""
    if given.layout.order != tuple(range(len(given.shape))):
        found = f"x is not in C order, but in the order of axes {given.layout.order}"
        raise UsageError(asked, found, "Pass numpy.ascontiguousarray(x)")


def result(
    x: Any, given: Array, out: Any, asked: str, shape: tuple[int, ...] | None = None
) -> Result:
    """Return the place of the result: `out` after a check, or a new array if `out` is None."""
    if out is None:
        return arrays.new_like(x, given, asked, shape)
    target = arrays.describe(out, asked + " into out", is_result=True)
    if not target.writable:
        found = f"out is read-only ({type(out).__name__})"
        raise UsageError(asked, found, "Pass a writable array, or out=None for a new one")
    expected = given.layout
    if shape is not None:
        in_c_order = arrays.layout_of(shape, None, ITEMSIZES[given.dtype])
        assert in_c_order is not None
        expected = in_c_order
    if (target.dtype, target.layout.hash) != (given.dtype, expected.hash):
        wanted = given.shape if shape is None else shape
        found = (
            f"out is {arrays.text_of(target.dtype, target.shape, target.layout.order)}, the result "
            f"{arrays.text_of(given.dtype, wanted, expected.order)}"
        )
        raise UsageError(asked, found, "Pass an out= of that shape, type and order")
    _core.tell_of_write(out)
    return Result(target, lambda: out)


def refuse_overlap(given: Array, result: Array, asked: str) -> None:
    """Raise UsageError if the result would overwrite a part of the input."""
    if arrays.overlap(given, result):
        found = "the result would overwrite a part of the input"
        raise UsageError(asked, found, "Pass an out= that shares no memory with x")
