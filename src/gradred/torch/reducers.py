"""What DistributedDataParallel has torch's reducer do, which is C++, with works made in Python."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch.distributed as dist

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
