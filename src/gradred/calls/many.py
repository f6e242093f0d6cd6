"""Allreduces of several arrays: from the arguments of a function to calls of the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gradred import _core, wire
from gradred.buffers import arrays, cuda_interface
from gradred.calls import arguments
from gradred.calls.one import Asked
from gradred.errors import UsageError, UsageTypeError, type_of


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
        for dtype in pieces.dtypes:
            wire.require(asked.wire, dtype, operations[dtype][0], name)
    buckets = _core.make_buckets(
        asked.comm,
        pieces,
        operations,
        layout=pieces.hash,
        plan=chosen.name,
        schedule=chosen.schedule,
        wire=(asked.wire or "") if pieces.dtypes else "",
        blocking=asked.blocking,
    )
    return Many(buckets, finish, held)


def _described(
    asked: Asked, arrays_in: Sequence[Any], out: Sequence[Any] | None, stream: int | None
) -> tuple[_core.Pieces, Callable[[], list[Any]], Any]:
    """Return the pieces of arrays of any kind, how to get the results, and what to keep alive."""
    name = asked.name
    require_list(arrays_in, f"{name} of arrays_in")
    given = [arrays.describe(x, f"{name} of array {i}") for i, x in enumerate(arrays_in)]
    targets = outs(out, len(given), name)
    results = [
        arguments.result(x, each, target, f"{name}, array {i}")
        for i, (x, each, target) in enumerate(zip(arrays_in, given, targets, strict=True))
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
    _require_apart(pieces, name)
    return pieces, lambda: [result.finish() for result in results], (given, results)


def require_list(given: Any, asked: str) -> None:
    """Raise UsageTypeError unless it has a length and items by number."""
    of_names = isinstance(given, Mapping)
    if of_names or not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        remedy = "Pass a list or tuple" + (", as list(x.values())" if of_names else "")
        raise UsageTypeError(asked, f"{type_of(given)} is not a list of arrays", remedy)


def outs(out: Any, count: int, asked: str) -> Sequence[Any]:
    """Return the `out=` of a call on several arrays as a list: None stands for a new array."""
    if out is None:
        return [None] * count
    require_list(out, f"{asked} into out")
    if len(out) != count:
        found = f"{count} arrays, but {len(out)} in out="
        raise UsageError(asked, found, "Pass an array for each result")
    listed: Sequence[Any] = out
    return listed


def _require_apart(pieces: _core.Pieces, asked: str) -> None:
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
    raise UsageError(asked, found, remedy)
