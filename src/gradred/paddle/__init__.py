"""Data-parallel training with PaddlePaddle: `import gradred.paddle as hvd`.

The names are those of Horovod, which has no front end for PaddlePaddle. docs/paddle.md shows their
use. No other module of gradred imports PaddlePaddle.
"""

from __future__ import annotations

from gradred.errors import refuse_missing as _refuse_missing

try:
    import paddle as _paddle  # noqa: F401
except ModuleNotFoundError as error:
    _refuse_missing(error, "paddle", "PaddlePaddle", "paddlepaddle")

from gradred.horovod.basics import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from gradred.horovod.errors import HorovodInternalError
from gradred.horovod.objects import allgather_object, broadcast_object
from gradred.horovod.operations import barrier, join, poll, synchronize
from gradred.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from gradred.paddle.functions import (
    allgather,
    allreduce,
    allreduce_,
    allreduce_async_,
    alltoall,
    broadcast,
    broadcast_,
    broadcast_optimizer_state,
    broadcast_parameters,
    grouped_allreduce,
    reducescatter,
)
from gradred.paddle.optimizer import DistributedOptimizer

__all__ = [
    "Adasum",
    "Average",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
    "synchronize",
]
