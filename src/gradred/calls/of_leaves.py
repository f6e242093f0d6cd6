"""Allreduce of arrays that are runs of leaves: `gradred.allreduce(x, leaves=L)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradred import _core, leaves, ops, request
from gradred.buffers import arrays
from gradred.calls import arguments
from gradred.calls.array_request import ArrayRequest, RequestOfOperations
from gradred.calls.one import Asked
from gradred.errors import UsageError

if TYPE_CHECKING:
    from gradred.leaves import LeavesLike


class _Prepared(NamedTuple):
    asked: leaves.Sum
    held: Any
    finish: Callable[[], Any]


def run(asked: Asked, x: Any, out: Any, of: LeavesLike) -> Any:
    """Carry out an allreduce of the leaves in `x`."""
    found = _prepare(asked, x, out, of)
    leaves.run(found.asked, found.held)
    return found.finish()


def start(asked: Asked, x: Any, out: Any, of: LeavesLike) -> ArrayRequest[Any]:
    """Start an allreduce of the leaves in `x`."""
    found = _prepare(asked, x, out, of)
    with asked.refusing():
        call, parts = leaves.call_to_start(found.asked)
    operation = request.start(asked.comm, call, (parts, found.held))
    return RequestOfOperations([(None, operation)], found.finish)


def _prepare(asked: Asked, x: Any, out: Any, of: LeavesLike) -> _Prepared:
    name, comm = asked.name, asked.comm
    with asked.refusing():
        if any(one is not None for one in (asked.stream, asked.plan, asked.wire)):
            why = "the host adds up leaves, as they are, by a tree that is the plan"
            raise UsageError(f"{name} with leaves", why, "Leave out stream=, plan= and wire=")
        split = leaves.split_of(of, comm.Get_size(), name)
        given = arrays.describe(x, f"{name} of x")
        arguments.require_c_order(given, name)
        if given.shape[:1] != (split.leaves[comm.Get_rank()],):
            why = f"x has shape {given.shape}, with leaves={of} on rank {comm.Get_rank()}"
            raise UsageError(name, why, "The first axis has as many leaves")
        target, finish = arguments.result(x, given, out, name, given.shape[1:])
        arguments.refuse_overlap(given, target, name)
        operation = arguments.operation(asked.op, given.dtype, name)
        if operation is None:
            remedy = f"Use one of {', '.join(ops.OPS)}"
            raise UsageError(f"{name} with leaves", "the MPI alone knows this operation", remedy)
        address, owner = arrays.bytes_on_host(given)
        result: Any = None
        if target.memory is not None:
            result = np.empty(max(target.nbytes, 1), np.uint8)
        vectors = leaves.Vectors(
            address,
            target.address if result is None else result.ctypes.data,
            target.count,
            given.dtype,
            target.layout.hash,
        )
        found = leaves.ask(comm, split, operation, vectors, name)

    def copy_to_device() -> Any:
        where = _core.placement(None, target, None, host_waits=True)
        _core.copy_bytes(target.address, result.ctypes.data, target.nbytes, where)
        return finish()

    held = (owner, given, target, result)
    return _Prepared(found, held, finish if result is None else copy_to_device)
