"""Data-parallel training with PaddlePaddle: `import gradred.paddle as hvd`.

The names are those of Horovod, which has no front end for PaddlePaddle. docs/paddle.md shows their
use. No other module of gradred imports PaddlePaddle.
"""

from gradred.errors import refuse_missing as _refuse_missing

try:
    import paddle as _paddle  # noqa: F401
except ModuleNotFoundError as error:
    _refuse_missing(error, "paddle", "PaddlePaddle", "paddlepaddle")

from gradred.horovod import names
from gradred.horovod.names import *  # noqa: F403
from gradred.horovod.objects import allgather_object, broadcast_object
from gradred.horovod.operations import barrier, join, poll, synchronize
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
    "DistributedOptimizer",
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
    "grouped_allreduce",
    "join",
    "poll",
    "reducescatter",
    "synchronize",
]
__all__ += names.__all__
