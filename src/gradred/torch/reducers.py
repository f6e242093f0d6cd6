"""What DistributedDataParallel has torch's reducer do, which is C++, with works made in Python."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
import torch.distributed as dist

from gradred.torch.process_group import ProcessGroupOfRanks

_works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def serve_reducers() -> None:
    """Have reducers keep what is Python of the works that they are given; once.

    C++ holds the other half alone, whose `wait` never ends. `DDP.join` gives a reducer the work of
    how many ranks have not joined, for which it waits in the backward pass.
    """
    kind: Any = dist.Reducer
    torchs = kind._set_forward_pass_work_handle
    if hasattr(torchs, "__wrapped__"):
        return

    @functools.wraps(torchs)
    def set_forward_pass_work_handle(self: Any, work: Any, use_static_world_size: bool) -> None:
        torchs(self, work, use_static_world_size)
        _works[self] = work  # as long as the reducer has it

    kind._set_forward_pass_work_handle = set_forward_pass_work_handle


def serve_builtin_hooks() -> None:
    """Have groups that are written in Python take C++'s hooks of DDP; once.

    C++'s FP16_COMPRESS wants a future whose value is a list of tensors to C++, too. Python makes
    none that ends later: a value that it gives one is a Python object to C++. So it is the hook
    that torch has in Python for the same. ALLREDUCE takes such values.
    """
    kind: Any = torch.nn.parallel.DistributedDataParallel
    torchs = kind._register_builtin_comm_hook
    if hasattr(torchs, "__wrapped__"):
        return

    @functools.wraps(torchs)
    def register_builtin_comm_hook(self: Any, comm_hook_type: Any) -> None:
        compresses = comm_hook_type == dist.BuiltinCommHookType.FP16_COMPRESS
        if not compresses or not isinstance(self.process_group, ProcessGroupOfRanks):
            torchs(self, comm_hook_type)
            return
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        self.logger._set_comm_hook_name(str(comm_hook_type))
        dist._register_comm_hook(self.reducer, self.process_group, fp16_compress_hook)

    kind._register_builtin_comm_hook = register_builtin_comm_hook
