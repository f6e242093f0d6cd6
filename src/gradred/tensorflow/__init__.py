"""Horovod's functions for TensorFlow 2, implemented by gradred: `import gradred.tensorflow as hvd`.

docs/tensorflow.md lists what is the same as in Horovod and what is missing. No other module of
gradred imports TensorFlow before this module is imported.
"""

from __future__ import annotations

from typing import Any

from gradred.errors import refuse_missing as _refuse_missing

try:
    import tensorflow as _tensorflow  # noqa: F401
except ModuleNotFoundError as error:
    _refuse_missing(error, "tensorflow", "TensorFlow")

from gradred.errors import explain as _explain
from gradred.horovod import names
from gradred.horovod.basics import Average
from gradred.horovod.names import *  # noqa: F403
from gradred.horovod.process_sets import ProcessSet, global_process_set
from gradred.tensorflow import (
    collectives,
    compression,
    elastic,
    functions,
    mpi_ops,
    sync_batch_norm,
    util,
)
from gradred.tensorflow import optimizer as _optimizer
from gradred.tensorflow.collectives import *  # noqa: F403
from gradred.tensorflow.compression import Compression
from gradred.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from gradred.tensorflow.mpi_ops import cuda_built, gpu_available
from gradred.tensorflow.sync_batch_norm import SyncBatchNormalization
from gradred.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from gradred.tensorflow.util import (
    _executing_eagerly,
    check_num_rank_power_of_2,
    refs_to_vars,
    vars_to_refs,
)

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "_executing_eagerly",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_num_rank_power_of_2",
    "compression",
    "cuda_built",
    "elastic",
    "functions",
    "gpu_available",
    "mpi_ops",
    "refs_to_vars",
    "sync_batch_norm",
    "util",
    "vars_to_refs",
]
__all__ += collectives.__all__
__all__ += names.__all__

HOROVOD_MODULES = ("mpi_ops", "functions", "compression", "elastic", "sync_batch_norm", "util")
"""The modules of this package that Horovod has under the same names."""

_VARIABLES = "Call broadcast_variables(model.weights, root_rank=0) after the first step"
_ABSENT = {
    "BroadcastGlobalVariablesHook": _VARIABLES,
    "LocalGradientAggregationHelper": "Pass backward_passes_per_step to DistributedOptimizer",
    "gradient_aggregation": "Pass backward_passes_per_step to DistributedOptimizer",
    "data": "Shard the data by dataset.shard(hvd.size(), hvd.rank())",
}
"""Names of Horovod that gradred does not provide, and what to use instead."""


def __getattr__(name: str) -> Any:
    if name in _ABSENT:
        found = "it belongs to TensorFlow 1's sessions, or to Horovod's inside"
        raise AttributeError(_explain(f"gradred.tensorflow.{name}", found, _ABSENT[name]))
    raise AttributeError(f"module 'gradred.tensorflow' has no attribute {name!r}")


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer of Keras reduce its gradients; see `gradred.keras.DistributedOptimizer`.

    `use_locking` has no effect. The other arguments are the same.
    """
    arguments = dict(locals())
    del arguments["use_locking"]
    return _optimizer.DistributedOptimizer(**arguments)
