"""Broadcast parameters, optimizer states and objects; allgather objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gradred.errors import explain, type_of
from gradred.horovod.basics import rank
from gradred.horovod.objects import allgather_object as allgather_object
from gradred.horovod.objects import broadcast_object as broadcast_object
from gradred.horovod.operations import one_structure
from gradred.horovod.process_sets import global_process_set
from gradred.torch.mpi_ops import broadcast_async_, synchronize
from gradred.torch_tensors import DTYPES


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Broadcast the parameters of `root_rank` to all ranks, in place. Blocks.

    Args:
        params: `model.state_dict()`, or a list of tensors or of `(name, tensor)` pairs.
        root_rank: the rank whose parameters are sent.

    Raises:
        ValueError: `params` is none of these.
        HorovodInternalError: the ranks pass tensors of other names.
    """
    if isinstance(params, dict):
        named = sorted(params.items())
    elif isinstance(params, list):
        named = [
            one if isinstance(one, tuple) else (f"param.{index}", one)
            for index, one in enumerate(params)
        ]
    else:
        remedy = "Pass model.state_dict() or a list of tensors"
        raise ValueError(explain("broadcast_parameters", f"got {type_of(params)}", remedy))
    tensors = [(name, one.detach()) for name, one in named if isinstance(one, torch.Tensor)]
    names = ", ".join(sorted(str(name) for name, _ in tensors))
    with one_structure("broadcast_parameters", f"tensors {names}", global_process_set):
        handles = [
            broadcast_async_(tensor, root_rank, f"parameter.{name}") for name, tensor in tensors
        ]
        for handle in handles:
            synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Broadcast the state and options of `root_rank`'s optimizer to all ranks. Blocks.

    `root_rank` itself also gets a copy. If the optimizer has no state yet, parameters without a
    gradient get zero gradients, as in Horovod. No optimizer step is made.

    Args:
        optimizer: receives the state and options.
        root_rank: the rank whose optimizer is sent.
        model: its embeddings with sparse gradients get sparse zeros.

    Raises:
        ValueError: the optimizer is an LBFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        remedy = "Use another optimizer"
        raise ValueError(explain("broadcast_optimizer_state", "LBFGS is not supported", remedy))
    found: Any = None
    tensors: list[torch.Tensor] = []
    if rank() == root_rank:
        found = dict(optimizer.state_dict())
        found["state"] = _replaced(found["state"], torch.Tensor, lambda x: _apart(x, tensors))
    found = broadcast_object(found, root_rank, "optimizer.state")
    if rank() != root_rank:
        _replaced(found["state"], _Apart, lambda apart: tensors.append(apart.empty()))
    handles = [
        broadcast_async_(tensor, root_rank, f"optimizer.{number}")
        for number, tensor in enumerate(tensors)
    ]
    for handle in handles:
        synchronize(handle)
    found["state"] = _replaced(found["state"], _Apart, lambda apart: tensors[apart.number])
    optimizer.load_state_dict(found)
    if not found["state"]:
        _begin_gradients(optimizer, model)


@dataclass(frozen=True)
class _Apart:
    """Placeholder for a tensor that is broadcast separately."""

    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> torch.Tensor:
        """An uninitialized tensor with this shape, strides and dtype."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype)


def _apart(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> _Apart | torch.Tensor:
    """Append a copy to `tensors`, and return its placeholder.

    Returns `tensor` itself if broadcasts do not support its layout or dtype.
    """
    if tensor.layout is not torch.strided or tensor.dtype not in DTYPES:
        return tensor
    tensors.append(tensor.detach().to("cpu", copy=True))  # dense, same order of axes
    made = tensors[-1]
    return _Apart(len(tensors) - 1, tuple(made.shape), made.stride(), made.dtype)


def _replaced(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Copy nested dictionaries, lists and tuples, and apply `change` to values of `kind`."""
    if isinstance(value, kind):
        return change(value)
    if type(value) is dict:
        return {key: _replaced(one, kind, change) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replaced(one, kind, change) for one in value)
    return value


def _begin_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """Set zero gradients for trainable parameters that have no gradient."""
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    modules = () if model is None else model.modules()
    tables = [one for one in modules if isinstance(one, embeddings) and one.sparse]
    sparse = {id(parameter) for table in tables for parameter in table.parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None and parameter.requires_grad:
                zeros = torch.zeros_like(parameter, requires_grad=False)
                is_sparse = isinstance(optimizer, torch.optim.SparseAdam) or id(parameter) in sparse
                parameter.grad = zeros.to_sparse() if is_sparse else zeros
