"""Creation of a process group: how the ranks of a group of torch.distributed find each other.

All members are ranks of one MPI job, in any order, or processes that torchrun,
torch.multiprocessing or the like has started. The latter share memory, and MPI is not initialized;
on several hosts they initialize MPI themselves, without mpiexec.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

from gradred import _rank
from gradred.comm import Comm
from gradred.errors import UsageError
from gradred.launch import pmi
from gradred.named import NamedOperations
from gradred.torch_distributed.callbacks import serve_futures
from gradred.torch_distributed.meeting import get, meet
from gradred.torch_distributed.messages import messages_of
from gradred.torch_distributed.monitored import serve_monitored_barrier
from gradred.torch_distributed.other_devices import serve_batches
from gradred.torch_distributed.reducers import serve_builtin_hooks, serve_reducers
from gradred.torch_distributed.splitting import serve_splits
from gradred.torch_distributed.watched import WatchableGroup, serve_watchers
from gradred.without_mpi import connect


def create(options: Any, _backend_options: Any = None) -> WatchableGroup:
    """Create a group; `init_process_group` and `new_group` call this on its members.

    Raises:
        gradred.UsageError: the ranks are not in one MPI job, and share no memory, or the program
            asks for `enable_reconfigure=True`.
        gradred.TimeoutError: a rank has not arrived within the group's time limit.
    """
    if getattr(options, "enable_reconfigure", False):
        asked, found = "enable_reconfigure=True", "the ranks of a group of gradred stay the same"
        raise UsageError(asked, found, "Leave it out, or use gloo for this group")
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
    name = f"gradred {options.group_id} of {','.join(map(str, members))}"
    of_name = dist.PrefixStore(name, options.store)
    store, places = meet(of_name, rank, members, _own_place(), options.timeout)
    if world_ranks := _ranks_in_one_mpi(places):
        comm = _comm_of_mpi(world_ranks)
    else:
        comm = connect(rank, size, _allgather_by(store, rank, members))
    engine = NamedOperations(comm, ranks=members)
    engine.let_streams_wait()
    messages = messages_of(comm, members, engine.look_for_lost)
    return WatchableGroup(engine, messages, store, options.timeout)


def _own_place() -> list[Any] | None:
    """This process's rank, its MPI job's size, and which job. None: it has no other process."""
    if not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1:
        return None
    return [MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size(), pmi.job]


def _ranks_in_one_mpi(places: Sequence[list[Any] | None]) -> list[int]:
    """The members' ranks in MPI, by rank in the group. Empty: they are not in one MPI job.

    torch may number the ranks differently from MPI.
    """
    known = [place for place in places if place is not None]
    ranks = [rank for rank, *_ in known]
    same = len({tuple(of) for _, *of in known}) == 1
    return ranks if len(set(ranks)) == len(places) and same else []


def _comm_of_mpi(world_ranks: Sequence[int]) -> Comm:
    """Create a communicator. Blocking, and collective over these ranks only."""
    everyone = MPI.COMM_WORLD.Get_group()
    group = everyone.Incl(world_ranks)
    try:
        return Comm(MPI.COMM_WORLD.Create_group(group))
    finally:
        group.Free()
        everyone.Free()


def _allgather_by(
    store: dist.Store, rank: int, members: Sequence[int]
) -> Callable[[bytes], list[bytes]]:
    turns = itertools.count()

    def allgather(mine: bytes) -> list[bytes]:
        turn = next(turns)
        store.set(f"{turn}/{rank}", mine)
        return [
            get(store, f"{turn}/{other}", f"rank {called} has not come further")
            for other, called in enumerate(members)
        ]

    return allgather
