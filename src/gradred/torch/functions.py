"""Parameters, the state of optimizers and objects, from one rank to all or from all to all."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch

from gradred.errors import explain
from gradred.torch.basics import rank
from gradred.torch.mpi_ops import allgather, broadcast_, broadcast_async_, synchronize
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
    """Give all ranks the state and the options of `root_rank`'s optimizer: blocks.

    Raises:
        ValueError: it is an LBFGS, whose state cannot be told in advance.
    """
    del model
    if isinstance(optimizer, torch.optim.LBFGS):
        remedy = "Use another optimizer"
        raise ValueError(explain("broadcast_optimizer_state", "LBFGS is not supported", remedy))
    root = broadcast_object(
        _described_state(optimizer) if rank() == root_rank else None,
        root_rank,
        "optimizer.state",
    )
    own = optimizer.state_dict()
    state = {}
    handles = []
    for number, values in root["state"].items():
        state[number] = dict(values)
        for key, value in values.items():
            if not isinstance(value, _Shape):
                continue
            made = own["state"].get(number, {}).get(key) if rank() == root_rank else None
            tensor = value.empty() if made is None else made.detach().cpu().clone().contiguous()
            state[number][key] = tensor
            named = f"optimizer.{number}.{key}"
            handles.append(broadcast_async_(tensor, root_rank, named))
    for handle in handles:
        synchronize(handle)
    if rank() != root_rank:
        optimizer.load_state_dict({"state": state, "param_groups": root["param_groups"]})


class _Shape:
    """A tensor that is sent apart."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype

    def empty(self) -> torch.Tensor:
        """Memory for it."""
        return torch.empty(self.shape, dtype=self.dtype)


def _described_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    found = optimizer.state_dict()
    state = {
        number: {
            key: _Shape(value) if isinstance(value, torch.Tensor) else value
            for key, value in values.items()
        }
        for number, values in found["state"].items()
    }
    return {"state": state, "param_groups": found["param_groups"]}
