"""Operations on PaddlePaddle's tensors; broadcast of parameters and of optimizers' states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import paddle

from gradred.errors import UsageError
from gradred.horovod.basics import Average, rank
from gradred.horovod.objects import broadcast_object
from gradred.horovod.operations import carry_out, one_structure, synchronize
from gradred.horovod.process_sets import ProcessSet, global_process_set
from gradred.paddle.front_end import COLLECTIVES, FRONT_END, require_tensor

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "allreduce_async_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "grouped_allreduce",
    "reducescatter",
]

_world = global_process_set


def _plain(tensor: paddle.Tensor, asked: str) -> paddle.Tensor:
    """Return the tensor. Raises UsageError if it requires a gradient: none would flow."""
    if not require_tensor(tensor, asked).stop_gradient and paddle.is_grad_enabled():
        found = "the tensor requires a gradient, and gradients do not flow through this call"
        raise UsageError(asked, found, "Pass tensor.detach()")
    return tensor


def allreduce_async_(
    tensor: paddle.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = _world,
    *,
    priority: int = 0,
) -> int:
    """Start a reduction in place. Returns a handle for `synchronize` immediately.

    Args:
        tensor: the tensor, which receives the result.
        name: matches the call with the calls of the other ranks. None counts the calls.
        op: Average, Sum, Min, Max, Product or Adasum.
        process_set: the ranks that take part.
        priority: operations that all ranks have submitted run by it, the highest first.
    """
    plain = _plain(tensor, "allreduce_async_")
    return COLLECTIVES.allreduce(plain, tensor, name, op, 1.0, 1.0, process_set, priority)


def allreduce_(
    tensor: paddle.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = _world,
) -> paddle.Tensor:
    """Reduce in place. Blocks. The arguments are those of `allreduce_async_`."""
    return carry_out(allreduce_async_, tensor, name, op, process_set)


def allreduce(
    tensor: paddle.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = _world,
) -> paddle.Tensor:
    """Return the reduction as a new tensor. Blocks. The arguments are as above."""
    plain = _plain(tensor, "allreduce").contiguous()
    out = FRONT_END.empty_like(plain, "allreduce")
    return carry_out(COLLECTIVES.allreduce, plain, out, name, op, 1.0, 1.0, process_set)


def grouped_allreduce(
    tensors: Sequence[paddle.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = _world,
) -> tuple[paddle.Tensor, ...]:
    """Reduce several tensors as one operation; returns new tensors. Blocks."""
    plain = [_plain(one, "grouped_allreduce").contiguous() for one in tensors]
    found: tuple[paddle.Tensor, ...] = carry_out(
        COLLECTIVES.grouped_allreduce, plain, None, name, op, 1.0, 1.0, process_set
    )
    return found


def allgather(
    tensor: paddle.Tensor, name: str | None = None, process_set: ProcessSet = _world
) -> paddle.Tensor:
    """Return all ranks' tensors, joined along the first axis. Blocks. Lengths may differ."""
    plain = _plain(tensor, "allgather")
    return carry_out(COLLECTIVES.allgather, plain, name, process_set)


def reducescatter(
    tensor: paddle.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = _world,
) -> paddle.Tensor:
    """Return this rank's rows of the average or sum. Blocks."""
    plain = _plain(tensor, "reducescatter")
    return carry_out(COLLECTIVES.reducescatter, plain, name, op, process_set, 1.0, 1.0)


def alltoall(
    tensor: paddle.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = _world,
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Send rows to each rank; returns the rows received, and their numbers by rank. Blocks.

    Args:
        tensor: the rows for rank 0 first, then those for rank 1, and so on.
        splits: number of rows for each rank. None: the same number for all ranks.
        name: matches the call with the calls of the other ranks. None counts the calls.
        process_set: the ranks that take part.
    """
    plain = _plain(tensor, "alltoall")
    found: tuple[paddle.Tensor, paddle.Tensor] = carry_out(
        COLLECTIVES.alltoall, plain, splits, name, process_set
    )
    return found


def broadcast_(
    tensor: paddle.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = _world,
) -> paddle.Tensor:
    """Write the tensor of `root_rank` into this one. Blocks."""
    plain = _plain(tensor, "broadcast_")
    return carry_out(COLLECTIVES.broadcast, plain, tensor, root_rank, name, process_set)


def broadcast(
    tensor: paddle.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = _world,
) -> paddle.Tensor:
    """Return the tensor of `root_rank` as a new one. Blocks."""
    plain = _plain(tensor, "broadcast").contiguous()
    return carry_out(COLLECTIVES.broadcast, plain, None, root_rank, name, process_set)


def broadcast_parameters(
    params: Mapping[str, Any], root_rank: int = 0, process_set: ProcessSet = _world
) -> None:
    """Broadcast the parameters and buffers of `root_rank` to all ranks, in place. Blocks.

    Args:
        params: `model.state_dict()`, or `dict(model.named_parameters())`.
        root_rank: the rank whose values are sent.
        process_set: the ranks that take part.
    """
    tensors = {key: one for key, one in sorted(params.items()) if isinstance(one, paddle.Tensor)}
    with one_structure("broadcast_parameters", f"tensors {', '.join(tensors)}", process_set):
        handles = [
            COLLECTIVES.broadcast(one, one, root_rank, f"parameter.{name}", process_set)
            for name, one in tensors.items()
        ]
        for handle in handles:
            synchronize(handle)


def broadcast_optimizer_state(optimizer: Any, root_rank: int = 0) -> None:
    """Broadcast the state of `root_rank`'s optimizer, its learning rate included. Blocks.

    Needed where only one rank has loaded a checkpoint. The models must have been made in the same
    way on all ranks: PaddlePaddle finds the state of a parameter by the parameter's name.

    Args:
        optimizer: receives the state.
        root_rank: the rank whose optimizer is sent.
    """
    is_root = rank() == root_rank
    mine = (_of_arrays(optimizer.state_dict()), optimizer.get_lr()) if is_root else None
    state, rate = broadcast_object(mine, root_rank, "optimizer.state")
    if is_root:
        return
    optimizer.set_state_dict(_of_tensors(state))
    if "LR_Scheduler" not in state:  # the state has a scheduler's rate, not a plain number
        optimizer.set_lr(rate)


def _of_arrays(state: Any) -> Any:
    """Nested dictionaries, with arrays and the names of their types in place of tensors."""
    if isinstance(state, dict):
        return {key: _of_arrays(value) for key, value in state.items()}
    if isinstance(state, paddle.Tensor):
        return (state.numpy(), str(state.dtype).removeprefix("paddle."), state.name)
    return state


def _of_tensors(state: Any) -> Any:
    """Turn what `_of_arrays` has returned into tensors again."""
    if isinstance(state, dict):
        return {key: _of_tensors(value) for key, value in state.items()}
    if isinstance(state, tuple) and len(state) == 3:
        array, dtype, name = state
        tensor = paddle.to_tensor(array)  # of uint16 it makes bfloat16
        made = tensor if dtype == "bfloat16" else tensor.astype(dtype)
        made.name = name
        return made
    return state
