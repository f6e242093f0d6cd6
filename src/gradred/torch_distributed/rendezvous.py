"""Creation of a process group: how the ranks of a group of torch.distributed find each other.

All members are ranks of one MPI job, in any order, or processes that torchrun,
torch.multiprocessing or the like has started. The latter share memory, and MPI is not initialized;
on several hosts they initialize MPI themselves, without mpiexec.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from gradred import _rank
from gradred.torch_distributed.callbacks import serve_futures
from gradred.torch_distributed.connecting import NotYet, connect_members
from gradred.torch_distributed.monitored import serve_monitored_barrier
from gradred.torch_distributed.other_devices import serve_batches
from gradred.torch_distributed.reconfigure import Reconfigurable
from gradred.torch_distributed.reducers import serve_builtin_hooks, serve_reducers
from gradred.torch_distributed.splitting import serve_splits
from gradred.torch_distributed.watched import WatchableGroup, serve_watchers


def _among_whom(options: Any) -> str:
    """The present ranks of the program: others may use the same store, and the same numbers."""
    is_part = bool(options.global_ranks_in_group)
    generation = getattr(dist.group.WORLD, "generation", "") if is_part else ""
    return f" in {generation}" if generation else ""


def create(options: Any, _backend_options: Any = None) -> WatchableGroup:
    """Create a group; `init_process_group` and `new_group` call this on its members.

    With `enable_reconfigure=True` the group has no ranks yet, and nothing waits for others:
    `reconfigure` connects them.

    Raises:
        gradred.UsageError: the ranks are not in one MPI job, and share no memory.
        gradred.TimeoutError: a rank has not arrived within the group's time limit.
    """
    _rank.spare_workers()
    serve_monitored_barrier()
    serve_batches()
    serve_futures()
    serve_reducers()
    serve_builtin_hooks()
    serve_watchers()
    serve_splits()
    rank, size = options.group_rank, options.group_size
    members = list(options.global_ranks_in_group) or list(range(size))
    name = f"gradred {options.group_id} of {','.join(map(str, members))}{_among_whom(options)}"
    everyone = dist.PrefixStore("gradred", options.store)
    if getattr(options, "enable_reconfigure", False):  # since torch 2.14
        nobody = NotYet(rank, size).connected(everyone)
        return WatchableGroup(nobody, options.timeout, Reconfigurable(everyone))
    of_name = dist.PrefixStore(name, options.store)
    made = connect_members(of_name, rank, members, options.timeout)
    return WatchableGroup(made, options.timeout, Reconfigurable(everyone, made.members))
