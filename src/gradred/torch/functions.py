"""Parameters, the state of optimizers and objects, from one rank to all or from all to all."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gradred.errors import explain
from gradred.torch.basics import rank
from gradred.torch.mpi_ops import allgather, broadcast_, broadcast_async_, synchronize
from gradred.torch.operations import DTYPES
from gradred.torch.process_sets import ProcessSet, global_process_set


def _pickle(obj: Any) -> torch.Tensor:
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    stream = io.BytesIO()
    pickler.dump(obj, stream)
    return torch.from_numpy(np.frombuffer(stream.getvalue(), "uint8").copy())


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give all ranks the parameters of `root_rank`: blocks.

    Args:
        params: `model.state_dict()`, or a list of tensors or of `(name, tensor)`.
        root_rank: whose they are.

    Raises:
        ValueError: it is none of these.
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
        raise ValueError(explain("broadcast_parameters", f"got a {type(params).__name__}", remedy))
    handles = [
        broadcast_async_(tensor.detach(), root_rank, f"parameter.{name}")
        for name, tensor in named
        if isinstance(tensor, torch.Tensor)
    ]
    for handle in handles:
        synchronize(handle)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Give all ranks an object of `root_rank`, pickled: blocks, and returns it."""
    name = "object" if name is None else name  # not its type, which may differ from rank to rank
    mine = rank() == root_rank
    data = _pickle(obj) if mine else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([data.numel()])
    broadcast_(length, root_rank, f"{name}.sz", process_set)
    if not mine:
        data = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(data, root_rank, f"{name}.t", process_set)
    return obj if mine else pickle.loads(data.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """All ranks' objects, pickled, in the order of the ranks: blocks."""
    name = "object" if name is None else name  # not its type, which may differ from rank to rank
    data = _pickle(obj)
    lengths = allgather(torch.tensor([data.numel()]), f"{name}.sz").tolist()
    pieces = allgather(data, f"{name}.t").split(lengths)
    return [pickle.loads(piece.numpy().tobytes()) for piece in pieces]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give all ranks, `root_rank` too, a copy of the state and options of its optimizer: blocks.

    Where it has no state yet, parameters without a gradient get zeros as theirs, as in Horovod; no
    step is made.

    Args:
        optimizer: has them afterwards.
        root_rank: whose they are.
        model: embeddings of it with sparse gradients get sparse zeros.

    Raises:
        ValueError: it is an LBFGS.
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
    """Stands for a tensor that is sent by itself."""

    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> torch.Tensor:
        """Memory for it."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype)


def _apart(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> _Apart | torch.Tensor:
    """What stands for it, of which `tensors` gets a copy; itself where no broadcast takes it."""
    if tensor.layout is not torch.strided or tensor.dtype not in DTYPES:
        return tensor
    tensors.append(tensor.detach().to("cpu", copy=True))  # dense, and the axes in their order
    made = tensors[-1]
    return _Apart(len(tensors) - 1, tuple(made.shape), made.stride(), made.dtype)


def _replaced(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Copies of the dictionaries, lists and tuples in it; what is of `kind` is changed."""
    if isinstance(value, kind):
        return change(value)
    if type(value) is dict:
        return {key: _replaced(one, kind, change) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replaced(one, kind, change) for one in value)
    return value


def _begin_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """Zeros for parameters that have no gradient and are to get one."""
    tables = [] if model is None else [one for one in model.modules() if _has_sparse_gradient(one)]
    sparse = {id(parameter) for table in tables for parameter in table.parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None and parameter.requires_grad:
                zeros = torch.zeros_like(parameter, requires_grad=False)
                is_sparse = isinstance(optimizer, torch.optim.SparseAdam) or id(parameter) in sparse
                parameter.grad = zeros.to_sparse() if is_sparse else zeros


def _has_sparse_gradient(module: torch.nn.Module) -> bool:
    return isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse
