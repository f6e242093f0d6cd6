"""Operations in flight: what is submitted, handles, and what comes of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gradred import _core
from gradred.element_types import ITEMSIZES
from gradred.errors import Error, UsageError, explain
from gradred.torch import basics
from gradred.torch.errors import NOT_INITIALISED, HorovodInternalError, internal_error
from gradred.torch.placed import SERVED, placement_of
from gradred.torch.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from gradred.named import Described, NamedOperations, NamedRequest

DTYPES = {
    dtype: name
    for name in ITEMSIZES
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
"""gradred's names of the element types that this PyTorch has."""

OPS = {
    basics.Average: "sum",
    basics.Sum: "sum",
    basics.Min: "min",
    basics.Max: "max",
    basics.Product: "prod",
}

_InFlight: TypeAlias = "tuple[NamedRequest, Callable[[NamedRequest], Any]]"
"""What stands behind a handle: the request, and what makes the result of it. Allreduces of one
tensor are `basics.state.handles`' own: most are, and no object of Python's is made for them."""

_core.know_tensors(torch.Tensor, torch.nn.Parameter)


def reduction(op: int | None, average: bool | None) -> int:
    """The operation that the two arguments ask for."""
    if average is not None:
        if op is not None:
            remedy = "Pass op alone"
            raise ValueError(explain("op and average", "both are given", remedy))
        warnings.warn("average is deprecated: pass op", DeprecationWarning, stacklevel=4)
        return basics.Average if average else basics.Sum
    return basics.Average if op is None else op


def reducing(op: int, process_set: ProcessSet) -> tuple[str, float]:
    """The engine's operation, and the factor for its results."""
    if not isinstance(op, int) or op not in OPS:
        raise ValueError(
            explain(
                f"op={op}", "there is no such operation", "Use Average, Sum, Min, Max or Product"
            )
        )
    if op == basics.Average:
        return "sum", 1.0 / (process_set.size() or 1)
    return OPS[op], 1.0


def described(tensor: torch.Tensor, out: torch.Tensor | None, asked: str) -> list[Described]:
    """A tensor as the engine sees it; `out` None lets the engine make memory for the result.

    Raises:
        ValueError: its type, memory or layout is none that the engine serves.
        gradred.DeviceError: it is no memory of this process.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        remedy = "Convert it first"
        raise ValueError(explain(asked, f"{tensor.type()} is not supported", remedy))
    if tensor.layout is not torch.strided or tensor.device.type not in SERVED:
        remedy = "Pass a dense tensor in host memory or on a GPU"
        raise ValueError(explain(asked, _why_not(tensor), remedy))
    result = 0 if out is None else out.data_ptr()
    if tensor.is_contiguous():
        return [_placed(tensor, out, result, dtype, tuple(tensor.shape), asked)]
    if out is None or not _is_dense(tensor) or tensor.stride() != out.stride():
        found = "the tensor is not contiguous"
        raise ValueError(explain(asked, found, "Pass tensor.contiguous()"))
    order = sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)
    in_memory = tuple(tensor.shape[axis] for axis in order)
    # An array without elements, whose shape tells the order, which all ranks must have in common.
    lies = _placed(tensor, out, result, dtype, in_memory, asked)
    return [lies, (0, 0, dtype, (0, *order))]


def _placed(
    tensor: torch.Tensor,
    out: torch.Tensor | None,
    result: int,
    dtype: str,
    shape: tuple[int, ...],
    asked: str,
) -> Described:
    plain = (tensor.data_ptr(), result, dtype, shape)
    if tensor.device.type == "cpu":
        return plain
    return (*plain, 0, placement_of(tensor, out, asked))


def _why_not(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        return f"the tensor is sparse ({tensor.layout})"
    return f"the tensor is on {tensor.device}"


def _is_dense(tensor: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def engine_of(process_set: ProcessSet) -> NamedOperations:
    """What carries out the set's operations."""
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
    """A handle of what is in flight from now on; `finish` makes the result of it.

    Names are apart by their kinds, unless `prefix` says otherwise.
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
    """Its handle."""
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
    """As `submit`, for an allreduce of one tensor."""
    if name is None:
        name = engine_of(process_set).next_name("allreduce")
    engine, start = process_set._engine, basics.state.handles.start_allreduce
    try:
        handle = start(engine, tensor, out, name, op, prescale, postscale, priority)
        if handle is not None:
            return handle
        asked = (prescale, postscale, process_set, out, priority)
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
    """As `submit`, for an allreduce of several tensors, or of one that the core leaves alone."""
    engine = engine_of(process_set)
    if op == basics.Adasum:
        from gradred.torch import adasum

        return adasum.start(inputs, outputs, name, prescale, postscale, process_set, result)
    operation, factor = reducing(op, process_set)
    return submit(
        engine,
        "allreduce",
        name,
        [
            array
            for x, y in zip(inputs, outputs, strict=True)
            for array in described(x, y, "allreduce")
        ],
        lambda _: result,
        (inputs, outputs),
        op=operation,
        prescale=prescale,
        postscale=postscale * factor,
        priority=priority,
    )


def poll(handle: int) -> bool:
    """Whether the operation has ended, so that `synchronize` does not block.

    Raises:
        ValueError: there is none of this handle, or it has been synchronised.
    """
    found = basics.state.handles.get(handle)
    if found is None:
        remedy = "Poll what an _async function gave, before synchronize"
        raise ValueError(explain(f"poll({handle})", "there is no such handle", remedy))
    return bool(found[0].done()) if isinstance(found, tuple) else found


def synchronize(handle: int | Callable[[], Any] | None) -> Any:
    """Block until an operation has ended, and return its result; None for an unknown handle.

    Raises:
        HorovodInternalError: it has ended badly.
    """
    handles = basics.state.handles
    try:
        result = handles.wait(handle)
        if result is not NotImplemented:
            return result
        found: _InFlight | None = handles.take(handle)
        if found is None:
            return handle() if callable(handle) else None
        request, finish = found
        request.wait()
    except Error as error:
        raise internal_error(error) from error
    return finish(request)


def require_set(process_set: ProcessSet) -> NamedOperations:
    """As `engine_of`, for calls that need no tensor."""
    if basics.state.place is None:
        raise HorovodInternalError(NOT_INITIALISED)
    return engine_of(process_set)


def is_global(process_set: ProcessSet) -> bool:
    """Whether it has all ranks."""
    return process_set is global_process_set
