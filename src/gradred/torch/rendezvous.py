"""How the ranks of a group of torch.distributed find each other: `create` makes their group.

They are those of an MPI, or of torchrun, torch.multiprocessing and the like: then they share
memory, and no MPI is begun.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

from gradred import _rank
from gradred.comm import Comm
from gradred.errors import UsageError, explain
from gradred.named import NamedOperations
from gradred.torch.callbacks import serve_futures
from gradred.torch.messages import messages_of
from gradred.torch.monitored import serve_monitored_barrier
from gradred.torch.other_devices import serve_batches
from gradred.torch.process_group import ProcessGroupGradred
from gradred.torch.reducers import serve_builtin_hooks, serve_reducers
from gradred.without_mpi import connect


def create(options: Any, _backend_options: Any = None) -> ProcessGroupGradred:
    """What `init_process_group` and `new_group` call on the members of a group.

    Raises:
        gradred.UsageError: the ranks of torch are not those of the MPI; without an MPI: they share
            no memory.
    """
    _rank.spare_workers()
    serve_monitored_barrier()
    serve_batches()
    serve_futures()
    serve_reducers()
    serve_builtin_hooks()
    size = options.group_size
    members = list(options.global_ranks_in_group) or list(range(size))
    store = _unused_part(options, members)
    if MPI.Is_initialized() and MPI.COMM_WORLD.Get_size() > 1:
        comm = _comm_of_mpi(members, options.group_rank)
    else:
        comm = connect(options.group_rank, size, _allgather_by(store, options.group_rank, size))
    engine = NamedOperations(comm)
    messages = messages_of(comm, engine.look_for_lost)
    return ProcessGroupGradred(engine, messages, store, options.timeout)


_made: Counter[str] = Counter()


def _unused_part(options: Any, members: Sequence[int]) -> dist.Store:
    """Of the group's store, where groups of this name have left their keys, perhaps.

    Those of exactly these ranks all of them have counted; others have no key of theirs. Workers
    that torchrun has started anew may have the store of those that ended: it counts the attempts.
    """
    group = f"{options.group_id} of {','.join(map(str, members))}"
    _made[group] += 1
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"gradred {group}: {_made[group]}, attempt {attempt}", options.store)


def _comm_of_mpi(members: Sequence[int], group_rank: int) -> Comm:
    world = MPI.COMM_WORLD
    asked = "a process group of gradred"
    if max(members) >= world.Get_size():
        found = f"torch counts {max(members) + 1} ranks or more, the MPI {world.Get_size()}"
        remedy = "Start the program by gradred run -np N"
        raise UsageError(explain(asked, found, remedy))
    if members[group_rank] != world.Get_rank():
        found = f"torch's rank {members[group_rank]} is the MPI's {world.Get_rank()}"
        remedy = "Let gradred run set RANK, or use the MPI's rank"
        raise UsageError(explain(asked, found, remedy))
    everyone = world.Get_group()
    group = everyone.Incl(members)
    try:
        return Comm(world.Create_group(group))
    finally:
        group.Free()
        everyone.Free()


def _allgather_by(store: dist.Store, rank: int, size: int) -> Callable[[bytes], list[bytes]]:
    turns = itertools.count()

    def allgather(mine: bytes) -> list[bytes]:
        turn = next(turns)
        store.set(f"{turn}/{rank}", mine)
        return [store.get(f"{turn}/{other}") for other in range(size)]

    return allgather
