"""Horovod's functions for PyTorch, implemented by gradred: `import gradred.torch as hvd`.

docs/horovod.md lists what is the same as in Horovod, what is better and what is missing. No other
module of gradred imports PyTorch before this module is imported.
"""

from gradred.errors import refuse_missing as _refuse_missing

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    _refuse_missing(error, "torch", "PyTorch")

from gradred import torch_backend
from gradred.horovod.names import *  # noqa: F403
from gradred.horovod.objects import allgather_object, broadcast_object
from gradred.torch import compression, elastic, functions, mpi_ops, optimizer, sync_batch_norm
from gradred.torch.compression import Compression
from gradred.torch.functions import broadcast_optimizer_state, broadcast_parameters
from gradred.torch.mpi_ops import *  # noqa: F403
from gradred.torch.optimizer import DistributedOptimizer
from gradred.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compression",
    "elastic",
    "functions",
    "mpi_ops",
    "optimizer",
    "sync_batch_norm",
]
__all__ += mpi_ops.__all__

torch_backend.register()

HOROVOD_MODULES = (
    *("mpi_ops", "functions", "optimizer", "compression", "sync_batch_norm"),
    *("elastic", "elastic.state", "elastic.sampler"),
)
"""The modules of this package that Horovod has under the same names."""

_check_has_gpu = mpi_ops.gpu_available
