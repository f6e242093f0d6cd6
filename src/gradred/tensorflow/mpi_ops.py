"""Horovod's module of operations and of questions about this process's ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gradred.horovod.basics import HorovodBasics
from gradred.horovod.names import *  # noqa: F403
from gradred.horovod.operations import reduction
from gradred.tensorflow.collectives import *  # noqa: F403
from gradred.tensorflow.util import check_num_rank_power_of_2 as check_num_rank_power_of_2

_basics = HorovodBasics()


def gpu_available(*_ignored: Any) -> bool:
    """Whether TensorFlow sees a GPU."""
    return bool(tf.config.list_physical_devices("GPU"))


def cuda_built(verbose: bool = False) -> bool:
    """Whether this TensorFlow was built with CUDA. It copies its GPUs' tensors to the host."""
    return bool(tf.test.is_built_with_cuda())


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The reduction operation that `op` and the deprecated `average` select."""
    return reduction(op, average)
