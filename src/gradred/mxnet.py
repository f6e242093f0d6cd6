"""Data-parallel training with MXNet 1.9 and Gluon: `import gradred.mxnet as hvd`.

The names are those of Horovod. docs/paddle.md shows their use. Arrays are reduced in MXNet's own
memory, which `to_dlpack_for_write` lends. No other module of gradred imports MXNet.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

from gradred.errors import UsageError, UsageTypeError, explain, refuse_missing, type_of

try:
    import mxnet as mx
    from mxnet.base import _LIB, check_call
except ModuleNotFoundError as error:
    refuse_missing(error, "mxnet", "MXNet", 'mxnet==1.9.1 "numpy<1.24"')

from gradred.buffers import dlpack
from gradred.element_types import ITEMSIZES
from gradred.horovod import names
from gradred.horovod.basics import Average, Sum, size
from gradred.horovod.names import *  # noqa: F403
from gradred.horovod.objects import allgather_object, broadcast_object
from gradred.horovod.operations import (
    barrier,
    carry_out,
    engine_of,
    one_structure,
    reducing,
    submit,
    synchronize,
)
from gradred.horovod.process_sets import global_process_set

__all__ = [
    "DistributedTrainer",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "barrier",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
]
__all__ += names.__all__

_CPU = 1  # DLPack's number of this kind of device


class _Lent(NamedTuple):
    """An array as an object that exports its memory by DLPack."""

    array: Any

    def __dlpack__(self, **_ignored: Any) -> Any:
        """Export the array. Blocks until MXNet has computed it, and all that read it."""
        # oneDNN keeps results of convolutions in an order of its own, which this call ends.
        address = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(self.array.handle, ctypes.byref(address)))
        return self.array.to_dlpack_for_write()


def _memory(array: Any, asked: str) -> dlpack.Exported:
    """The memory of an array. Blocks until MXNet has computed it, and all that read it.

    Raises:
        gradred.UsageError: it is no array of MXNet, it is sparse, it is on a GPU, or its type is
            not supported.
    """
    if not isinstance(array, mx.nd.NDArray):
        found = f"{type_of(array)} is not an array of MXNet"
        raise UsageTypeError(asked, found, "Pass mxnet.nd.array(x)")
    if array.stype != "default":
        raise UsageError(asked, f"the array is sparse ({array.stype})", 'Pass x.tostype("default")')
    if array.ctx.device_type == "gpu":
        raise UsageError(asked, f"the array is on {array.ctx}", "Pass x.as_in_context(mxnet.cpu())")
    found_memory = dlpack.export(_Lent(array), _CPU)
    if found_memory.dtype not in ITEMSIZES:
        found = f"elements of type {found_memory.dtype} are not supported"
        raise UsageError(asked, found, "Convert it first")
    return found_memory


def _start(kind: str, array: Any, name: str | None, **how: Any) -> int:
    """Start an operation in place, and return its handle."""
    memory = _memory(array, kind)
    described = (memory.address, memory.address, memory.dtype, memory.shape)
    engine = engine_of(global_process_set)
    return submit(engine, kind, name, [described], lambda _: array, (array, memory.owner), **how)


def allreduce_(array: Any, name: str | None = None, op: int = Average, priority: int = 0) -> Any:
    """Reduce an array in place over all ranks, and return it. Blocks.

    Args:
        array: an array of MXNet in host memory.
        name: matches the call with the calls of the other ranks. None counts the calls.
        op: Average, Sum, Min, Max or Product.
        priority: operations that all ranks have submitted run by it, the highest first.
    """
    return carry_out(_start, "allreduce", array, name, op=reducing(op), priority=priority)


def allreduce(array: Any, name: str | None = None, op: int = Average, priority: int = 0) -> Any:
    """Return the reduction as a new array. Blocks. The arguments are those of `allreduce_`."""
    if not isinstance(array, mx.nd.NDArray):
        _memory(array, "allreduce")  # raises an error
    return allreduce_(array.copy(), name, op, priority)


def broadcast_(array: Any, root_rank: int, name: str | None = None) -> Any:
    """Write the array of `root_rank` into this one, and return it. Blocks."""
    return carry_out(_start, "broadcast", array, name, root=root_rank)


def broadcast_parameters(params: Mapping[str, Any], root_rank: int = 0) -> None:
    """Broadcast the parameters of `root_rank` to all ranks, in place. Blocks.

    Args:
        params: `net.collect_params()`, or a dictionary of arrays.
        root_rank: the rank whose parameters are sent.

    Raises:
        gradred.UsageError: a parameter has no value yet.
    """
    arrays = [_value_of(name, params[name]) for name in sorted(params)]
    with one_structure("broadcast_parameters", f"{len(arrays)} parameters", global_process_set):
        handles = [
            _start("broadcast", array, f"parameter.{place}", root=root_rank)
            for place, array in enumerate(arrays)  # Gluon's names may differ between ranks
        ]
        for handle in handles:
            synchronize(handle)


def _value_of(name: str, parameter: Any) -> Any:
    if not isinstance(parameter, mx.gluon.Parameter):
        return parameter
    try:
        return parameter.data()
    except mx.gluon.parameter.DeferredInitializationError:
        found = f"{name} has no value before the first batch, as its shape is not known"
        remedy = "Call net(batch) once, with a batch of the right shape"
        raise UsageError("broadcast_parameters", found, remedy) from None


class DistributedTrainer(mx.gluon.Trainer):
    """A `gluon.Trainer` that reduces the gradients of all ranks before each update.

    `step(batch_size)` takes the number of rows of this rank. While MXNet computes a gradient, the
    gradients of later layers are already being reduced. `allreduce_grads()` and `update()` are its
    two halves, as in Gluon. Parameters without a new gradient count as zeros. All ranks make their
    trainers in one order.

    Args:
        params: `net.collect_params()`, the same on all ranks.
        optimizer: an optimizer of MXNet, or its name.
        optimizer_params: its arguments.
        op: Average or Sum.

    Raises:
        ValueError: `op` is another one, or init() has not been called.
    """

    _made = 0

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        op: int = Average,
    ) -> None:
        if op not in (Average, Sum):
            raise ValueError(explain("DistributedTrainer", f"op={op}", "Use Average or Sum"))
        global_process_set.takes_part()  # raises where init() was forgotten
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._op = reducing(op)
        self._number = DistributedTrainer._made
        DistributedTrainer._made += 1

    def _allreduce_grads(self) -> None:
        """Reduce the gradients in place: Gluon calls this before it updates the parameters."""
        if size() == 1:
            return
        # MXNet computes the gradients of the last layers first.
        handles = [
            self._start(place, parameter)
            for place, parameter in reversed([*enumerate(self._params)])
            if parameter.grad_req != "null"
        ]
        for handle in handles:
            synchronize(handle)

    def _start(self, place: int, parameter: Any) -> int:
        gradient, value = self._only(parameter.list_grad()), self._only(parameter.list_data())
        if not value._fresh_grad:  # a gradient of an earlier step, or none
            gradient[:] = 0
            value._fresh_grad = True
        name = f"trainer {self._number}, gradient {place}"
        return _start("allreduce", gradient, name, op=self._op, priority=-place)

    def _only(self, arrays: list[Any]) -> Any:
        if len(arrays) == 1:
            return arrays[0]
        found = f"the parameters are on {len(arrays)} devices"
        raise UsageError("DistributedTrainer.step", found, "Start one rank for each device")
