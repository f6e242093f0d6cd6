"""Collective operations on tensors, with Horovod's names and meaning.

Most operations have a blocking form and a nonblocking one (`_async`), which returns a handle for
`poll` and `synchronize`. A final underscore means in place. Operations are matched by kind and
name, so ranks may submit them in any order. Operations without a name are matched by order: all
ranks have to submit them in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import torch

from gradred.horovod import names
from gradred.horovod.basics import Average, HorovodBasics, Sum, rank
from gradred.horovod.collectives import group_of
from gradred.horovod.names import *  # noqa: F403
from gradred.horovod.operations import barrier, carry_out, join, poll, reduction, synchronize
from gradred.horovod.process_sets import ProcessSet, global_process_set
from gradred.horovod.state import state
from gradred.horovod.util import num_rank_is_power_2
from gradred.horovod.wires import wire_of
from gradred.torch.compression import Compression
from gradred.torch.front_end import COLLECTIVES, FRONT_END
from gradred.torch_tensors import require_tensor

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "cuda_built",
    "gpu_available",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "join",
    "num_rank_is_power_2",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += names.__all__

Tensor: TypeAlias = torch.Tensor
_world = global_process_set


_basics = HorovodBasics()

# Starts an allreduce in C++, and returns its handle, or None if Python has to submit it.
_start = state.handles.start_allreduce


def gpu_available(*_ignored: Any) -> bool:
    """Whether PyTorch sees a GPU."""
    return bool(torch.cuda.is_available())


def cuda_built(verbose: bool = False) -> bool:
    """Whether this PyTorch was built with CUDA. Operations accept its GPU tensors."""
    return torch.version.cuda is not None


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The reduction operation that `op` and the deprecated `average` select."""
    return reduction(op, average)


def _compressed(compression: Any, tensor: Tensor, asked: str) -> tuple[Tensor, Any]:
    """The tensor to send, and the context that `decompress` needs."""
    return cast("tuple[Tensor, Any]", compression.compress(require_tensor(tensor, asked)))


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _world,
    *,
    priority: int = 0,
    wire: str = "",
) -> int:
    """Start a reduction whose result is a new tensor. Returns a handle immediately.

    Operations that all ranks have submitted run by `priority`, the highest first. A higher
    priority also goes before the remaining part of a large operation that has begun. `wire` is the
    form of float32 between hosts, as in `gradred.allreduce`. Horovod has neither.
    """
    output = FRONT_END.empty_like(tensor, "allreduce")
    pre, post, engine = prescale_factor, postscale_factor, process_set._engine
    if (
        average is None
        and not wire
        and (handle := _start(engine, tensor, output, name, op, pre, post, priority))
    ):
        return handle
    op = reduction(op, average)
    return COLLECTIVES.allreduce(tensor, output, name, op, pre, post, process_set, priority, wire)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _world,
    *,
    priority: int = 0,
    wire: str = "",
) -> int:
    """Start a reduction in place. Returns a handle immediately."""
    pre, post, engine = prescale_factor, postscale_factor, process_set._engine
    if (
        average is None
        and not wire
        and (handle := _start(engine, tensor, tensor, name, op, pre, post, priority))
    ):
        return handle
    op = reduction(op, average)
    return COLLECTIVES.allreduce(tensor, tensor, name, op, pre, post, process_set, priority, wire)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _world,
) -> Tensor:
    """Reduce in place, and return the tensor. Blocks."""
    how = (average, name, op, prescale_factor, postscale_factor, process_set)
    reduced: Tensor = carry_out(allreduce_async_, tensor, *how)
    return reduced


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: Any, op: int, rest: Any, wire: str, grouped: bool, *xs: Tensor
    ) -> Any:
        ctx.how = op, rest, wire, grouped
        start = grouped_allreduce_async if grouped else allreduce_async
        how = functools.partial(start, wire=wire) if wire else start
        return carry_out(how, xs if grouped else xs[0], None, name, op, *rest)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dense = [gradient.contiguous() for gradient in gradients]
        reduced = _Allreduce.apply(None, *ctx.how, *dense)
        return (None, None, None, None, None, *(reduced if ctx.how[-1] else [reduced]))


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _world,
) -> Tensor:
    """Reduce over all ranks, and return a new tensor. Blocks. Gradients flow through the result.

    Args:
        tensor: any dense tensor. Its memory layout has to be the same on all ranks.
        average: deprecated; True means `op=Average`, False means `op=Sum`.
        name: matches this call with the calls of the other ranks.
        compression: what is sent, see `Compression`.
        op: Average (the default), Sum, Min, Max, Product or Adasum.
        prescale_factor: factor applied to each input.
        postscale_factor: factor applied to the result.
        process_set: the ranks that take part.

    Raises:
        ValueError: the arguments are invalid. Only this rank raises it.
        HorovodInternalError: the ranks' calls differ (all ranks raise it), or a rank has ended.
    """
    op = reduction(op, average)
    sent, context = _compressed(compression, tensor, "allreduce")
    rest = (prescale_factor, postscale_factor, process_set)
    received = _Allreduce.apply(name, op, rest, wire_of(compression), False, sent)
    return cast("Tensor", compression.decompress(received, context))


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _world,
    *,
    priority: int = 0,
    wire: str = "",
) -> int:
    """Start one reduction of several tensors. `synchronize` returns a tuple of new tensors."""
    op = reduction(op, average)
    rest = (prescale_factor, postscale_factor, process_set, priority, wire)
    return COLLECTIVES.grouped_allreduce(tensors, None, name, op, *rest)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _world,
    *,
    priority: int = 0,
    wire: str = "",
) -> int:
    """Start one reduction of several tensors in place."""
    op = reduction(op, average)
    rest = (prescale_factor, postscale_factor, process_set, priority, wire)
    return COLLECTIVES.grouped_allreduce(tensors, tensors, name, op, *rest)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _world,
) -> tuple[Tensor, ...]:
    """Reduce several tensors in place as one operation. Blocks."""
    scales = (prescale_factor, postscale_factor)
    asked = (tensors, average, name, op, *scales, process_set)
    return cast("tuple[Tensor, ...]", carry_out(grouped_allreduce_async_, *asked))


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _world,
) -> list[Tensor]:
    """Reduce several tensors as one operation, and return new tensors. Blocks."""
    op = reduction(op, average)
    inputs = group_of(tensors, "grouped_allreduce")
    pairs = [_compressed(compression, x, "grouped_allreduce") for x in inputs]
    rest = (prescale_factor, postscale_factor, process_set)
    wire = wire_of(compression)
    received = _Allreduce.apply(name, op, rest, wire, True, *[sent for sent, _ in pairs])
    contexts = [context for _, context in pairs]
    return [compression.decompress(x, c) for x, c in zip(received, contexts, strict=True)]


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: int, process_set: ProcessSet = _world
) -> Any:
    """Start a reduction of a sparse tensor. Call the returned function to wait for the result."""
    tensor = require_tensor(tensor, "sparse_allreduce").coalesce()
    parts = [tensor._indices().transpose(0, 1).contiguous(), tensor._values().contiguous()]
    handle = COLLECTIVES.sparse_allreduce(parts, name, process_set)

    def finish() -> Tensor:
        indices, values = synchronize(handle)
        if op == Average:
            values = values / process_set.size()
        made = (indices.transpose(0, 1), values, tensor.shape)
        return cast("Tensor", torch.sparse_coo_tensor(*made, check_invariants=False))

    return finish


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = _world
) -> int:
    """Start an allgather along the first axis. The ranks' lengths may differ."""
    return COLLECTIVES.allgather(tensor, name, process_set)


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = _world
) -> int:
    """Start one allgather of several tensors."""
    return COLLECTIVES.grouped_allgather(tensors, name, process_set)


def _own_rows(gradient: Tensor, rows: int, process_set: ProcessSet) -> Tensor:
    """The part of an allgather's result that this rank contributed."""
    lengths = carry_out(allgather_async, torch.tensor([rows]), None, process_set).tolist()
    place = process_set.place_of(rank())
    return gradient.narrow(0, sum(lengths[:place]), rows)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, process_set: ProcessSet, name: Any, grouped: bool, *xs: Tensor) -> Any:
        ctx.rows, ctx.process_set = [x.shape[0] if x.dim() else 1 for x in xs], process_set
        if not grouped:
            return carry_out(allgather_async, xs[0], name, process_set)
        return carry_out(grouped_allgather_async, xs, name, process_set)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        found = []
        for gradient, rows in zip(gradients, ctx.rows, strict=True):
            reduced = allreduce(gradient.contiguous(), op=Average, process_set=ctx.process_set)
            found.append(_own_rows(reduced, rows, ctx.process_set))
        return (None, None, None, *found)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = _world) -> Tensor:
    """Concatenate all ranks' tensors along the first axis, whose lengths may differ. Blocks."""
    require_tensor(tensor, "allgather")
    return cast("Tensor", _Allgather.apply(process_set, name, False, tensor))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = _world
) -> tuple[Tensor, ...]:
    """Allgather several tensors as one operation. Blocks."""
    inputs = [
        require_tensor(x, "grouped_allgather") for x in group_of(tensors, "grouped_allgather")
    ]
    return cast("tuple[Tensor, ...]", _Allgather.apply(process_set, name, True, *inputs))


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _world
) -> int:
    """Start a broadcast from `root_rank`, a global rank. The result is a new tensor."""
    return COLLECTIVES.broadcast(tensor, None, root_rank, name, process_set)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _world
) -> int:
    """Start a broadcast in place."""
    return COLLECTIVES.broadcast(tensor, tensor, root_rank, name, process_set)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: Any, process_set: ProcessSet) -> Any:
        ctx.root, ctx.process_set = root, process_set
        return carry_out(broadcast_async, tensor, root, name, process_set)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        reduced = allreduce(gradient.contiguous(), op=Average, process_set=ctx.process_set)
        if rank() != ctx.root:
            reduced = reduced * 0
        return reduced, None, None, None


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _world
) -> Tensor:
    """Broadcast the tensor of `root_rank`, a global rank, to a new tensor. Blocks."""
    return cast("Tensor", _Broadcast.apply(tensor, root_rank, name, process_set))


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _world
) -> Tensor:
    """Broadcast in place from `root_rank`, a global rank. Blocks."""
    return cast("Tensor", carry_out(broadcast_async_, tensor, root_rank, name, process_set))


def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = _world,
) -> int:
    """Start an alltoall of rows. `synchronize` returns the tensor and the rows per rank."""
    return COLLECTIVES.alltoall(tensor, splits, name, process_set)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: Any, process_set: ProcessSet) -> Any:
        made, received = carry_out(alltoall_async, tensor, splits, name, process_set)
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return made, received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _received: Tensor) -> Any:
        back, _ = _Alltoall.apply(gradient.contiguous(), ctx.received, None, ctx.process_set)
        return back, None, None, None


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = _world,
) -> Any:
    """Send rows to each rank, and receive the rows that the ranks send to this one. Blocks.

    Args:
        tensor: the rows to send, those for rank 0 first, then those for rank 1, and so on.
        splits: number of rows for each rank. None: the same number for all ranks.
        name: matches this call with the calls of the other ranks.
        process_set: the ranks that take part.

    Returns:
        The received rows in rank order. If `splits` is given, a pair: these rows, and the number of
        rows received from each rank.
    """
    made, received = _Alltoall.apply(tensor, splits, name, process_set)
    return made if splits is None else (made, received)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = _world,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reduction of which each rank receives some rows."""
    scales = (prescale_factor, postscale_factor)
    return COLLECTIVES.reducescatter(tensor, name, op, process_set, *scales)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = _world,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start one reduce-scatter of several tensors."""
    scales = (prescale_factor, postscale_factor)
    return COLLECTIVES.grouped_reducescatter(tensors, name, op, process_set, *scales)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Any, op: int, rest: Any, grouped: bool, *xs: Tensor) -> Any:
        ctx.op, ctx.rest = op, rest
        if not grouped:
            return carry_out(reducescatter_async, xs[0], name, op, *rest)
        return carry_out(grouped_reducescatter_async, xs, name, op, *rest)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        process_set, prescale, postscale = ctx.rest
        factor = prescale * postscale * (process_set.size() if ctx.op == Sum else 1)
        found = [
            allgather((gradient * factor).contiguous(), None, process_set) for gradient in gradients
        ]
        return (None, None, None, None, *found)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = _world,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce over all ranks, and return this rank's rows of the result. Blocks.

    If n rows do not divide evenly among p ranks, the first n mod p ranks get one row more.
    """
    sent, context = _compressed(compression, tensor, "reducescatter")
    rest = (process_set, prescale_factor, postscale_factor)
    received = _Reducescatter.apply(name, op, rest, False, sent)
    return cast("Tensor", compression.decompress(received, context))


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = _world,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduce-scatter several tensors as one operation. Blocks."""
    inputs = group_of(tensors, "grouped_reducescatter")
    pairs = [_compressed(compression, x, "grouped_reducescatter") for x in inputs]
    rest = (process_set, prescale_factor, postscale_factor)
    received = _Reducescatter.apply(name, op, rest, True, *[sent for sent, _ in pairs])
    contexts = [context for _, context in pairs]
    return [compression.decompress(x, c) for x, c in zip(received, contexts, strict=True)]
