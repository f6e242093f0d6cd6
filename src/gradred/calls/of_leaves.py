"""Allreduce of arrays that are runs of leaves: `gradred.allreduce(x, leaves=L)`."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradred import _core, leaves, ops, request
from gradred.buffers import arrays
from gradred.buffers.arrays import Array, Result
from gradred.calls import arguments, many
from gradred.calls.array_request import ArrayRequest, RequestOfOperations
from gradred.calls.one import Asked
from gradred.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

    from gradred.leaves import LeavesLike, Split

# Leaves of several arrays are copied to travel together if they are no longer.
_JOINED_BYTES = 64 << 10


class _Read(NamedTuple):
    """An array of leaves, and the place of their sum."""

    given: Array
    result: Result


class _Prepared(NamedTuple):
    asked: leaves.Sum
    held: Any
    copies: Sequence[Callable[[], None]]
    """What brings the sum to where it belongs."""

    def unpack(self) -> None:
        for copy in self.copies:
            copy()


def leaves_of_job(comm: MPI.Intracomm | None = None) -> range:
    """Return which leaves of the job (`gradred run --leaves`) this rank has. Local.

    The ranks of `comm` share them by their numbers: each has as many, or one more.

    Args:
        comm: any intracommunicator of mpi4py; None is COMM_WORLD.

    Raises:
        gradred.UsageError: the job has no number of leaves.
    """
    comm = arguments.communicator(comm, "leaves_of_job")
    each = leaves.split_of("job", comm.Get_size(), "leaves_of_job").leaves
    begin = sum(each[: comm.Get_rank()])
    return range(begin, begin + each[comm.Get_rank()])


def run(asked: Asked, x: Any, out: Any, of: LeavesLike) -> Any:
    """Carry out an allreduce of the leaves in `x`."""
    return _run(*_prepare(asked, [x], [out], of))[0]


def start(asked: Asked, x: Any, out: Any, of: LeavesLike) -> ArrayRequest[Any]:
    """Start an allreduce of the leaves in `x`."""
    prepared, finish = _prepare(asked, [x], [out], of)
    return _start(asked, prepared, lambda: finish()[0])


def run_many(asked: Asked, given: Sequence[Any], out: Sequence[Any] | None, of: Any) -> list[Any]:
    """Carry out an allreduce of the leaves in several arrays."""
    return _run(*_prepare_many(asked, given, out, of))


def start_many(
    asked: Asked, given: Sequence[Any], out: Sequence[Any] | None, of: Any
) -> ArrayRequest[list[Any]]:
    """Start an allreduce of the leaves in several arrays."""
    return _start(asked, *_prepare_many(asked, given, out, of))


def _run(prepared: Sequence[_Prepared], finish: Callable[[], list[Any]]) -> list[Any]:
    for one in prepared:
        leaves.run(one.asked, one.held)
        one.unpack()
    return finish()


def _start(
    asked: Asked, prepared: Sequence[_Prepared], finish: Callable[[], Any]
) -> ArrayRequest[Any]:
    operations = []
    for one in prepared:
        with asked.refusing():
            found = leaves.call_to_start(one.asked)
            found.add_own()
        operation = request.start(asked.comm, found.call, (found.held, one.held))
        operations.append((one, operation))
    return RequestOfOperations(operations, finish)


def _prepare_many(
    asked: Asked, given: Sequence[Any], out: Sequence[Any] | None, of: LeavesLike
) -> tuple[list[_Prepared], Callable[[], list[Any]]]:
    with asked.refusing():
        many.require_list(given, f"{asked.name} of arrays_in")
        targets = many.outs(out, len(given), asked.name)
    return _prepare(asked, given, targets, of)


def _prepare(
    asked: Asked, xs: Sequence[Any], outs: Sequence[Any], of: LeavesLike
) -> tuple[list[_Prepared], Callable[[], list[Any]]]:
    with asked.refusing():
        if any(one is not None for one in (asked.stream, asked.plan, asked.wire)):
            why = "the host adds up leaves, as they are, by a tree that is the plan"
            raise UsageError(f"{asked.name} with leaves", why, "Leave out stream=, plan= and wire=")
        split = leaves.split_of(of, asked.comm.Get_size(), asked.name)
        named = (
            [asked.name] if len(xs) == 1 else [f"{asked.name}, array {i}" for i in range(len(xs))]
        )
        read = [
            _read(asked, name, x, out, (split, of))
            for name, x, out in zip(named, xs, outs, strict=True)
        ]
        _require_apart(read, asked.name)
        # All that the ranks have to agree on is compared in the first call.
        layouts = [(one.given.dtype, one.result.array.layout.hash) for one in read]
        layout = zlib.crc32(repr(layouts).encode())
        prepared = [_joined(asked, group, split, layout) for group in _groups(read, split)]
    return prepared, lambda: [one.result.finish() for one in read]


def _read(asked: Asked, name: str, x: Any, out: Any, how: tuple[Split, LeavesLike]) -> _Read:
    (split, of), rank = how, asked.comm.Get_rank()
    given = arrays.describe(x, f"{name} of x")
    arguments.require_c_order(given, name)
    if given.shape[:1] != (split.leaves[rank],):
        why = f"x has shape {given.shape}, with leaves={of} on rank {rank}"
        raise UsageError(name, why, "The first axis has as many leaves")
    return _Read(given, arguments.result(x, given, out, name, given.shape[1:]))


def _require_apart(read: Sequence[_Read], asked: str) -> None:
    """Raise UsageError if a result shares memory with an input or with another result."""
    results = [one.result.array for one in read]
    spans = [(one, True) for one in results] + [(one.given, False) for one in read]
    spans = sorted((one for one in spans if one[0].nbytes), key=lambda span: span[0].address)
    end = {False: 0, True: 0}  # of the results so far; of the inputs so far
    for array, is_result in spans:
        if array.address < end[True] or (is_result and array.address < end[False]):
            found = "the result would overwrite a part of the input, or another result"
            raise UsageError(asked, found, "Pass an out= that shares no memory with others")
        end[is_result] = max(end[is_result], array.address + array.nbytes)


def _groups(read: Sequence[_Read], split: Split) -> list[list[_Read]]:
    """Return the arrays that travel together: of one type, and short; at least one group."""
    short: dict[str, list[_Read]] = {}
    long: list[list[_Read]] = []
    for one in read:
        if one.result.array.nbytes <= _JOINED_BYTES:
            short.setdefault(one.given.dtype, []).append(one)
        else:
            long.append([one])
    return [*short.values(), *long] or [[]]


def _joined(asked: Asked, group: Sequence[_Read], split: Split, layout: int) -> _Prepared:
    """Return the sum of the leaves of some arrays; without one it announces this rank's call."""
    dtype = group[0].given.dtype if group else "float32"
    operation = arguments.operation(asked.op, dtype, asked.name) if group else ("sum", 1.0)
    if operation is None:
        remedy = f"Use one of {', '.join(ops.OPS)}"
        raise UsageError(f"{asked.name} with leaves", "the MPI alone knows this operation", remedy)
    results = [one.result.array for one in group]
    sources = [arrays.bytes_on_host(one.given) for one in group]
    held: list[Any] = [sources, group]
    is_straight = len(group) == 1 and results[0].memory is None
    if len(group) == 1:
        source = sources[0][0]
    else:
        each = split.leaves[asked.comm.Get_rank()]
        rows = [
            _bytes_at(at, one.nbytes, each) for (at, _), one in zip(sources, results, strict=True)
        ]
        whole = np.concatenate([np.empty((each, 0), np.uint8), *rows], axis=1)
        source = whole.ctypes.data
        held.append(whole)
    copies = []
    if is_straight:
        target = results[0].address
    else:
        total = np.empty(sum(one.nbytes for one in results) + 1, np.uint8)
        target = begin = total.ctypes.data
        held.append(total)
        for one in results:
            copies.append(_copy(begin, one))
            begin += one.nbytes
    count = sum(one.count for one in results)
    vectors = leaves.Vectors(source, target, count, dtype, layout)
    found = leaves.ask(asked.comm, split, operation, vectors, asked.name)
    return _Prepared(found, held, copies)


def _bytes_at(address: int, nbytes: int, leaves: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a view of leaves of so many bytes each."""
    if nbytes * leaves == 0:
        return np.empty((leaves, nbytes), np.uint8)
    whole = (ctypes.c_uint8 * (nbytes * leaves)).from_address(address)
    return np.frombuffer(memoryview(whole), np.uint8).reshape(leaves, nbytes)


def _copy(source: int, target: Array) -> Callable[[], None]:
    """Return what copies the bytes of a result from the host."""

    def copy() -> None:
        where = _core.placement(None, target, None, host_waits=True)
        _core.copy_bytes(target.address, source, target.nbytes, where)

    return copy
