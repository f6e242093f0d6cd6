"""Horovod's module of operations and of questions about this process's ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gradred.horovod.basics import (
    Adasum,
    Average,
    HorovodBasics,
    Max,
    Min,
    Product,
    Sum,
    ccl_built,
    cross_rank,
    cross_size,
    ddl_built,
    gloo_built,
    gloo_enabled,
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
from gradred.horovod.errors import HorovodInternalError
from gradred.horovod.operations import reduction
from gradred.horovod.process_sets import ProcessSet, global_process_set
from gradred.tensorflow.collectives import (
    allgather,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from gradred.tensorflow.util import check_num_rank_power_of_2

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
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
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

_basics = HorovodBasics()


def gpu_available(*_ignored: Any) -> bool:
    """Whether TensorFlow sees a GPU."""
    return bool(tf.config.list_physical_devices("GPU"))


def cuda_built(verbose: bool = False) -> bool:
    """Whether this TensorFlow was built with CUDA. It copies its GPUs' tensors to the host."""
    del verbose
    return bool(tf.test.is_built_with_cuda())


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The reduction operation that `op` and the deprecated `average` select."""
    return reduction(op, average)
