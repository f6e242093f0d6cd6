"""Patches that let the reducer of DistributedDataParallel (C++) use works made in Python."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
import torch.distributed as dist

from gradred.torch_distributed.process_group import ProcessGroupOfRanks

_works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def serve_reducers() -> None:
    """Patch reducers to keep the Python half of their works alive. Has an effect once.

    A reducer owns only the C++ half of a work, whose `wait` never returns without the Python half.
    `DDP.join` gives the reducer a work that counts the ranks that have not joined. The reducer
    waits for it in the backward pass.
    """
    kind: Any = dist.Reducer
    torchs = kind._set_forward_pass_work_handle
    if hasattr(torchs, "__wrapped__"):
        return

    @functools.wraps(torchs)
    def set_forward_pass_work_handle(self: Any, work: Any, use_static_world_size: bool) -> None:
        torchs(self, work, use_static_world_size)
        _works[self] = work  # as long as the reducer lives

    kind._set_forward_pass_work_handle = set_forward_pass_work_handle


def serve_builtin_hooks() -> None:
    """Let groups written in Python use DDP's built-in hooks, which are in C++. Has an effect once.

    C++'s FP16_COMPRESS needs a future whose value is a list of tensors in C++. Python cannot make a
    future that gets such a value later: for C++ the value is a Python object. So the equivalent
    Python hook of torch replaces it. The hook ALLREDUCE accepts Python objects.
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
