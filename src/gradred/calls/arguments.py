"""Checks and conversions of arguments that all array calls share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from gradred import _core, ops, plans
from gradred.buffers import arrays, cuda_interface
from gradred.buffers.arrays import Array, Result
from gradred.comm import Comm
from gradred.element_types import ITEMSIZES
from gradred.errors import UsageError, UsageTypeError, explain, type_of

if TYPE_CHECKING:
    from gradred.ops import OpLike

_world: Comm | None = None


def communicator(comm: Any, asked: str) -> MPI.Intracomm:
    """Return `comm`, or COMM_WORLD for None; UsageTypeError for anything else."""
    global _world
    if comm is None:
        if _world is None:
            _world = Comm(MPI.COMM_WORLD)
        return _world
    if not isinstance(comm, MPI.Intracomm):
        null = isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL
        found = "comm is null" if null else f"comm is {type_of(comm)}"
        message = explain(asked, found, "Pass an MPI.Intracomm, or None for COMM_WORLD")
        raise UsageTypeError(message)
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
        raise UsageError(explain(asked, "the MPI alone knows this operation", remedy))
    return found


def require_c_order(given: Array, asked: str) -> None:
    """Raise UsageError unless the axes are in C order."""
    if given.layout.order != tuple(range(len(given.shape))):
        found = f"x is not in C order, but in the order of axes {given.layout.order}"
        raise UsageError(explain(asked, found, "Pass numpy.ascontiguousarray(x)"))


def result(
    x: Any, given: Array, out: Any, asked: str, shape: tuple[int, ...] | None = None
) -> Result:
    """Return the place of the result: `out` after a check, or a new array if `out` is None."""
    if out is None:
        return arrays.new_like(x, given, asked, shape)
    target = arrays.describe(out, asked + " into out", is_result=True)
    if not target.writable:
        found = f"out is read-only ({type(out).__name__})"
        raise UsageError(explain(asked, found, "Pass a writable array, or out=None for a new one"))
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
        raise UsageError(explain(asked, found, "Pass an out= of that shape, type and order"))
    _core.tell_of_write(out)
    return Result(target, lambda: out)


def same(given: Array, result: Array, asked: str) -> bool:
    """Return whether the result replaces the input; UsageError if it overlaps it in part."""
    if given.address == result.address:
        return True
    refuse_overlap(given, result, asked)
    return False


def refuse_overlap(given: Array, result: Array, asked: str) -> None:
    """Raise UsageError if the result would overwrite a part of the input."""
    if arrays.overlap(given, result):
        found = "the result would overwrite a part of the input"
        raise UsageError(explain(asked, found, "Pass an out= that shares no memory with x"))


def require_list(given: Any, asked: str) -> None:
    """Raise UsageTypeError unless it has a length and items by number."""
    of_names = isinstance(given, Mapping)
    if of_names or not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        found = f"{type_of(given)} is not a list of arrays"
        remedy = "Pass a list or tuple" + (", as list(x.values())" if of_names else "")
        raise UsageTypeError(explain(asked, found, remedy))


def outs(out: Any, count: int, asked: str) -> Sequence[Any]:
    """Return the `out=` of a call on several arrays as a list: None stands for a new array."""
    if out is None:
        return [None] * count
    require_list(out, f"{asked} into out")
    if len(out) != count:
        found = f"{count} arrays, but {len(out)} in out="
        raise UsageError(explain(asked, found, "Pass an array for each result"))
    listed: Sequence[Any] = out
    return listed


def require_apart(pieces: _core.Pieces, asked: str) -> None:
    """Raise UsageError if a result shares memory with another result or another input."""
    shared = pieces.shared_memory
    if shared is None:
        return
    result, other, both_results = shared
    if both_results:
        first, second = sorted((result, other))
        found = f"the results of arrays {first} and {second} share memory"
    else:
        found = f"the result of array {result} would overwrite a part of array {other}"
    remedy = "Pass an out= of arrays that share no memory; x itself reduces in place"
    raise UsageError(explain(asked, found, remedy))


def call(
    kind: str,
    given: Array,
    result: Array,
    chosen: plans.Plan,
    *,
    operation: tuple[str, float] = ("sum", 1.0),
    in_place: bool = False,
    root: int = 0,
    stream: int | None = None,
) -> _core.Call:
    """Make a call on an array; if `given` and `result` differ in length, the shorter is a block."""
    cuda_interface.finish_stream([None if in_place else given, result], stream)
    return _core.Call(
        kind,
        None if in_place else given.address,
        result.address,
        min(given.count, result.count),
        given.dtype,
        operation[0],
        factor=operation[1],
        root=root,
        layout=given.layout.hash,
        plan=chosen.name,
        schedule=chosen.schedule,
        placement=_core.placement(None if in_place else given, result, stream),
    )
