"""Horovod's functions for Keras on TensorFlow: `import gradred.keras as hvd`.

docs/tensorflow.md shows how a script uses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradred.tensorflow as _tensorflow
from gradred.errors import UsageError as _UsageError
from gradred.errors import explain as _explain
from gradred.errors import refuse_missing as _refuse_missing

try:
    import keras as _keras
except ModuleNotFoundError as _error:
    _refuse_missing(_error, "keras", "Keras 3")

from gradred.tensorflow.keras_in_use import IS_KERAS_2 as _IS_KERAS_2
from gradred.tensorflow.keras_in_use import keras as _keras_in_use

if not _IS_KERAS_2 and _keras.backend.backend() != "tensorflow":
    _found = f"Keras's backend is {_keras.backend.backend()}"
    _remedy = "Set KERAS_BACKEND=tensorflow, or use gradred.torch or gradred.allreduce"
    raise _UsageError(_explain("import gradred.keras", _found, _remedy))

from gradred.horovod import names
from gradred.horovod.basics import Average
from gradred.horovod.names import *  # noqa: F403
from gradred.keras import callbacks, elastic
from gradred.tensorflow import (
    Compression,
    allgather_object,
    broadcast_object,
    broadcast_variables,
    cuda_built,
)
from gradred.tensorflow.optimizer import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    adapt,
)

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cuda_built",
    "elastic",
    "load_model",
    "reducescatter",
]
__all__ += names.__all__

HOROVOD_MODULES = ("callbacks", "elastic")
"""The modules of this package that Horovod has under the same names."""


def __getattr__(name: str) -> Any:
    if name == "broadcast_global_variables":
        found = "it belongs to TensorFlow 1's sessions"
        remedy = "Pass fit(callbacks=[BroadcastGlobalVariablesCallback(0)])"
        raise AttributeError(_explain(f"gradred.keras.{name}", found, remedy))
    raise AttributeError(f"module 'gradred.keras' has no attribute {name!r}")


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce an array or a tensor over all ranks, and return a tensor. Eager calls block."""
    return _tensorflow.allreduce(
        value,
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenate all ranks' arrays along the first axis into a tensor. Eager calls block."""
    return _tensorflow.allgather(value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the array of `root_rank` as a tensor. Eager calls block."""
    return _tensorflow.broadcast(value, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduce over all ranks, and return this rank's rows as a tensor. Eager calls block."""
    return _tensorflow.reducescatter(value, op=op, name=name)


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model that Keras has saved, and make its optimizer reduce gradients.

    Args:
        filepath: the file.
        custom_optimizers: classes of optimizers that Keras does not have.
        custom_objects: other classes and functions, by name; see `keras.models.load_model`.
        compression: what is sent, see `Compression`.
        legacy_opts: no effect.
    """
    objects = {one.__name__: one for one in custom_optimizers or ()}
    found = {**objects, **(custom_objects or {})}
    model = _keras_in_use.models.load_model(filepath, custom_objects=found)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
        adapt(model)
    return model
