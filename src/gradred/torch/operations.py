"""Operations in flight: submission, handles and results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gradred.errors import Error, UsageError, UsageTypeError, explain
from gradred.torch import basics
from gradred.torch.errors import NOT_INITIALISED, HorovodInternalError, internal_error
from gradred.torch.process_sets import ProcessSet, global_process_set
from gradred.torch_tensors import described

if TYPE_CHECKING:
    from gradred.named import Described, NamedOperations, NamedRequest

OPS = {
    basics.Average: "avg",
    basics.Sum: "sum",
    basics.Min: "min",
    basics.Max: "max",
    basics.Product: "prod",
}

_NAMES_OF_OPS = "Average, Sum, Min, Max, Product or Adasum"

_InFlight: TypeAlias = "tuple[NamedRequest, Callable[[NamedRequest], Any]]"
"""The content of a handle: the request, and the function that makes the result from it.
`basics.state.handles` manages allreduces of one tensor itself. These are the most frequent
operations, and no Python object is made for them."""

_wait = basics.state.handles.wait


def _require_op(op: Any) -> None:
    """Raise UsageTypeError if `op` is not a number."""
    if isinstance(op, int):
        return
    found = f"it is of type {type(op).__name__}, and operations are numbers here"
    raise UsageTypeError(explain(f"op={op!r}", found, f"Use {_NAMES_OF_OPS}"))


def reduction(op: int | None, average: bool | None) -> int:
    """The operation that `op` and the deprecated `average` select.

    Raises:
        ValueError: both arguments are given.
        gradred.UsageError: `op` is not a number, such as mpi4py's MPI.SUM.
    """
    if op is not None and type(op) is not int:
        _require_op(op)
    if average is not None:
        if op is not None:
            remedy = "Pass op alone"
            raise ValueError(explain("op and average", "both are given", remedy))
        warnings.warn("average is deprecated: pass op", DeprecationWarning, stacklevel=4)
        return basics.Average if average else basics.Sum
    return basics.Average if op is None else op


def reducing(op: int) -> str:
    """The engine's name of the operation."""
    _require_op(op)
    if op not in OPS:
        found = "there is no such operation"
        raise ValueError(explain(f"op={op}", found, f"Use {_NAMES_OF_OPS}"))
    return OPS[op]


def engine_of(process_set: ProcessSet) -> NamedOperations:
    """The engine that carries out the set's operations."""
    engine = process_set._engine
    return process_set.engine() if engine is None else engine


def submit(
    engine: NamedOperations,
    kind: str,
    name: str | None,
    tensors: Sequence[Described],
    finish: Callable[[NamedRequest], Any],
    held: Any,
    *,
    op: str = "sum",
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = 0,
    splits: Sequence[int] = (),
    prefix: str | None = None,
    priority: int = 0,
) -> int:
    """Submit an operation, and return its handle. `finish` makes the result from the request.

    Operations of different kinds have separate names, unless `prefix` is given.
    """
    prefix = kind if prefix is None else prefix
    full = f"{prefix}.{engine.next_name(prefix) if name is None else name}"
    try:
        how = (op, prescale, postscale, root, splits, held, priority)
        request = engine.submit(kind, full, tensors, *how)
    except UsageError:
        raise
    except Error as error:
        raise internal_error(error) from error
    return put((request, finish))


def put(in_flight: _InFlight) -> int:
    """Store an operation in flight, and return its handle."""
    return basics.state.handles.put(in_flight)


def submit_tensor(
    tensor: torch.Tensor,
    out: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int = 0,
) -> int:
    """Like `submit`, for an allreduce of one tensor."""
    engine, how = engine_of(process_set), (op, prescale, postscale, priority)
    if name is None:
        name = engine.next_name("allreduce")
        handle = basics.state.handles.start_allreduce(engine, tensor, out, name, *how)
        if handle is not None:
            return handle
    asked = (prescale, postscale, process_set, out, priority)
    try:
        return submit_tensors([tensor], [out], name, op, *asked)
    except UsageError:
        raise
    except Error as error:
        raise internal_error(error) from error


def submit_tensors(
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    result: Any,
    priority: int,
) -> int:
    """Like `submit`, for an allreduce of several tensors, or of one that C++ does not accept."""
    engine = engine_of(process_set)
    if op == basics.Adasum:
        from gradred.torch import adasum

        return adasum.start(inputs, outputs, name, prescale, postscale, process_set, result)
    operation = reducing(op)
    return submit(
        engine,
        "allreduce",
        name,
        [described(x, y, "allreduce") for x, y in zip(inputs, outputs, strict=True)],
        lambda _: result,
        (inputs, outputs),
        op=operation,
        prescale=prescale,
        postscale=postscale,
        priority=priority,
    )


def poll(handle: int) -> bool:
    """Whether the operation has ended, so that `synchronize` returns immediately.

    Raises:
        ValueError: the handle is unknown, or `synchronize` has consumed it.
    """
    found = basics.state.handles.get(handle)
    if found is None:
        remedy = "Poll what an _async function gave, before synchronize"
        raise ValueError(explain(f"poll({handle})", "there is no such handle", remedy))
    return bool(found[0].done()) if isinstance(found, tuple) else found


def synchronize(handle: int | Callable[[], Any] | None) -> Any:
    """Block until an operation has ended, and return its result. None: the handle is unknown.

    Raises:
        HorovodInternalError: the operation has failed.
    """
    result = _wait(handle)
    return result if result is not NotImplemented else _result_of(handle)


def _result_of(handle: int | Callable[[], Any] | None) -> Any:
    """Like `synchronize`, for a handle whose result Python code makes."""
    found: _InFlight | None = basics.state.handles.take(handle)
    try:
        if found is None:
            return handle() if callable(handle) else None
        request, finish = found
        request.wait()
    except Error as error:
        raise internal_error(error) from error
    return finish(request)


def require_set(process_set: ProcessSet) -> NamedOperations:
    """Like `engine_of`, for calls without a tensor. Raises an error before init()."""
    if basics.state.place is None:
        raise HorovodInternalError(NOT_INITIALISED)
    return engine_of(process_set)


def is_global(process_set: ProcessSet) -> bool:
    """Whether this is the set of all ranks."""
    return process_set is global_process_set
