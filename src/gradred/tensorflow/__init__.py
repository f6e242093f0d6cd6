"""Horovod's functions for TensorFlow 2, implemented by gradred: `import gradred.tensorflow as hvd`.

docs/tensorflow.md lists what is the same as in Horovod and what is missing. No other module of
gradred imports TensorFlow before this module is imported.
"""

from __future__ import annotations

from typing import Any

try:
    import tensorflow as _tensorflow  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    import sys

    from gradred.errors import explain

    asked = "gradred.tensorflow"
    if "horovod" in sys.modules:
        asked = "horovod.tensorflow, which is gradred.tensorflow"
    text = explain(
        f"import {asked}",
        f"this Python ({sys.executable}) has no TensorFlow",
        "Install it, for example with pip install tensorflow",
    )
    raise ModuleNotFoundError(text, name="tensorflow") from None

from gradred.errors import explain as _explain
from gradred.horovod.errors import HorovodInternalError
from gradred.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from gradred.tensorflow import (
    compression,
    elastic,
    functions,
    mpi_ops,
    sync_batch_norm,
    util,
)
from gradred.tensorflow import optimizer as _optimizer
from gradred.tensorflow.collectives import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from gradred.tensorflow.compression import Compression
from gradred.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from gradred.tensorflow.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    gpu_available,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from gradred.tensorflow.sync_batch_norm import SyncBatchNormalization
from gradred.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from gradred.tensorflow.util import (
    _executing_eagerly,
    check_num_rank_power_of_2,
    refs_to_vars,
    vars_to_refs,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "_executing_eagerly",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_num_rank_power_of_2",
    "compression",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "functions",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_ops",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "sync_batch_norm",
    "util",
    "vars_to_refs",
]

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

    Args:
        optimizer: see there.
        name: see there.
        use_locking: no effect.
        device_dense: see there.
        device_sparse: see there.
        compression: see there.
        sparse_as_dense: see there.
        backward_passes_per_step: see there.
        op: see there.
        gradient_predivide_factor: see there.
        average_aggregated_gradients: see there.
        num_groups: see there.
        groups: see there.
        process_set: see there.
        scale_local_gradients: see there.
    """
    del use_locking
    return _optimizer.DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
