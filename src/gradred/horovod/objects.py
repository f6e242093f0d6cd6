"""Broadcast and allgather picklable objects."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from gradred.horovod.basics import rank
from gradred.horovod.operations import engine_of, submit, synchronize
from gradred.horovod.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from numpy.typing import NDArray


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Broadcast a picklable object of `root_rank`, and return it on all ranks. Blocks."""
    name = "object" if name is None else name  # not the type's name: types may differ between ranks
    mine = rank() == root_rank
    data = _pickle(obj) if mine else np.empty(0, np.uint8)
    length = np.array([data.size])
    _broadcast(length, root_rank, f"{name}.sz", process_set)
    if not mine:
        data = np.empty(int(length[0]), np.uint8)
    _broadcast(data, root_rank, f"{name}.t", process_set)
    return obj if mine else pickle.loads(data.tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return a list of all ranks' picklable objects in rank order. Blocks."""
    name = "object" if name is None else name  # not the type's name: types may differ between ranks
    data = _pickle(obj)
    lengths = _allgather(np.array([data.size]), f"{name}.sz", process_set)
    gathered = _allgather(data, f"{name}.t", process_set)
    pieces = np.split(gathered, np.cumsum(lengths)[:-1])
    return [pickle.loads(piece.tobytes()) for piece in pieces]


def _pickle(obj: Any) -> NDArray[np.uint8]:
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    stream = io.BytesIO()
    pickler.dump(obj, stream)
    return np.frombuffer(stream.getvalue(), np.uint8)


def _broadcast(x: NDArray[Any], root_rank: int, name: str, process_set: ProcessSet) -> None:
    """Broadcast an array in place. Blocks."""
    engine = engine_of(process_set)
    root = process_set.place_of(root_rank)
    array = (x.ctypes.data, x.ctypes.data, x.dtype.name, x.shape)
    synchronize(submit(engine, "broadcast", name, [array], lambda _: None, x, root=root))


def _allgather(x: NDArray[Any], name: str, process_set: ProcessSet) -> NDArray[Any]:
    """Concatenate all ranks' arrays along the only axis. Blocks."""
    engine = engine_of(process_set)
    array = (x.ctypes.data, 0, x.dtype.name, x.shape)
    finish = lambda request: request.outputs[0].view(x.dtype)  # noqa: E731
    gathered: NDArray[Any] = synchronize(submit(engine, "allgather", name, [array], finish, x))
    return gathered
