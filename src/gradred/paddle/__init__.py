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
from gradred.paddle import functions
from gradred.paddle.functions import *  # noqa: F403
from gradred.paddle.optimizer import DistributedOptimizer

__all__ = [
    "DistributedOptimizer",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "join",
    "poll",
    "synchronize",
]
__all__ += functions.__all__
__all__ += names.__all__
