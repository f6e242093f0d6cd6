"""Allreduce of arrays that is compressed between hosts: `gradred.allreduce(x, wire="int8")`."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gradred import _core, wire
from gradred.buffers import arrays
from gradred.calls import arguments
from gradred.calls.one import Asked
from gradred.errors import UsageError


def run(asked: Asked, x: Any, out: Any, form: object, leaves: object) -> Any:
    """Carry out an allreduce of `x` over a wire of this form."""
    name = asked.name
    with asked.refusing():
        if any(one is not None for one in (asked.stream, asked.plan, leaves)):
            why = "the host encodes, by a plan of its own"
            remedy = "Leave out stream= and plan= and leaves="
            raise UsageError(f"{name} with wire={form!r}", why, remedy)
        given = arrays.describe(x, f"{name} of x")
        target, finish = arguments.result(x, given, out, name)
        if target.address != given.address:
            arguments.refuse_overlap(given, target, name)
        operation = arguments.own_operation(asked.op, given.dtype, name)
        form = wire.require_wire(form, given.dtype, operation[0], name)
        address, owner = arrays.bytes_on_host(given)
        on_host = target.memory is None
        staged = None if on_host else np.empty(given.count, np.float32)
        vector = _floats(target.address, target.count) if staged is None else staged
        source = vector if address == target.address else _floats(address, given.count)
    wire.reduce(asked.comm, source, vector, form, operation, given.layout.hash)
    del owner
    if staged is not None:
        where = _core.placement(None, target, None, host_waits=True)
        _core.copy_bytes(target.address, staged.ctypes.data, target.nbytes, where)
    return finish()


def _floats(address: int, count: int) -> Any:
    if not count:
        return np.empty(0, np.float32)
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
