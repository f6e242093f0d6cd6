"""Operations in flight: submission, handles and results."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gradred.errors import Error, UsageError, UsageTypeError, explain
from gradred.horovod import basics
from gradred.horovod.errors import HorovodInternalError, internal_error
from gradred.horovod.process_sets import ProcessSet, global_process_set
from gradred.horovod.state import state

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
`state.handles` manages allreduces of one tensor itself. These are the most frequent
operations, and no Python object is made for them."""

_wait = state.handles.wait


def _require_op(op: Any) -> None:
    """Raise UsageTypeError if `op` is not a number."""
    if isinstance(op, int):
        return
    found = f"it is of type {type(op).__name__}, and operations are numbers here"
    raise UsageTypeError(f"op={op!r}", found, f"Use {_NAMES_OF_OPS}")


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
    structure: str = "",
    wire: str = "",
) -> int:
    """Submit an operation, and return its handle. `finish` makes the result from the request.

    Operations of different kinds have separate names, unless `prefix` is given.
    """
    prefix = kind if prefix is None else prefix
    full = f"{prefix}.{engine.next_name(prefix) if name is None else name}"
    try:
        how = (op, prescale, postscale, root, splits, held, priority)
        request = engine.submit(kind, full, tensors, *how, structure=structure, wire=wire)
    except UsageError:
        raise
    except Error as error:
        raise internal_error(error) from error
    in_flight: _InFlight = (request, finish)
    return state.handles.put(in_flight)


def poll(handle: int) -> bool:
    """Whether the operation has ended, so that `synchronize` returns immediately.

    Raises:
        ValueError: the handle is unknown, or `synchronize` has consumed it.
    """
    found = state.handles.get(handle)
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
    found: _InFlight | None = state.handles.take(handle)
    try:
        if found is None:
            return handle() if callable(handle) else None
        request, finish = found
        request.wait()
    except Error as error:
        raise internal_error(error) from error
    return finish(request)


carry_out: Callable[..., Any] = functools.partial(state.handles.carry_out, _result_of)
"""`carry_out(start, ...)` starts an operation by `start(...)`, and returns its result. Blocks.

A signal handler of the program's runs before its arrays are read, or after the end.
"""


_turns: defaultdict[tuple[str, int | None], threading.RLock] = defaultdict(threading.RLock)


def in_turn(asked: str, process_set: ProcessSet) -> contextlib.AbstractContextManager[bool]:
    """Let calls of several threads follow each other, so that no name is in flight twice."""
    return _turns[asked, process_set.process_set_id]


@contextlib.contextmanager
def one_structure(asked: str, structure: str, process_set: ProcessSet) -> Iterator[None]:
    """Block until all ranks are here, with an error if their structures differ.

    For calls that match tensors by names: the ranks would wait for names that others do not have.
    Such calls of several threads follow each other.

    `structure` describes what this rank passes to the call `asked`, which is the same on all.

    Raises:
        HorovodInternalError: the ranks pass other structures. All ranks raise it.
    """
    engine = engine_of(process_set)
    name = f"structure of {asked}"
    with in_turn(asked, process_set):
        synchronize(submit(engine, "barrier", name, [], lambda _: None, None, structure=structure))
        yield


def join(device: int = -1) -> int:
    """Declare that this rank has no more batches. Blocks until all ranks have joined.

    While it waits, this rank contributes zeros to the other ranks' sums and averages.

    Returns:
        The rank that joined last.
    """
    engine = engine_of(global_process_set)
    request = engine.join()
    try:
        request.wait()
    except Error as error:
        raise HorovodInternalError(str(error)) from error
    engine.count_anew()
    return request.last_joined


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Block until all ranks have called this. Operations in flight may still be running."""
    engine = engine_of(process_set)
    synchronize(submit(engine, "barrier", "barrier", [], lambda _: None, None))
