"""How the members of a process group find each other, and what then carries its operations out.

They meet in a store of torch. A group that is created has its members in one MPI job, or connects
them. A group that is reconfigured connects those that share memory, and leaves their MPI alone:
after the end of a rank the MPI may wait for it for ever.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch.distributed as dist
from mpi4py import MPI

from gradred import _core
from gradred.comm import Comm
from gradred.errors import UsageError
from gradred.launch import pmi, proc
from gradred.named import NamedOperations
from gradred.torch_distributed.meeting import get, meet
from gradred.torch_distributed.messages import Messages, messages_of
from gradred.without_mpi import by_memory, by_mpi, connect

Member = dict[str, Any]
"""What the others have to know of a member, in words that JSON has:

- `groups`: how many groups it has made, by which torch names the next one.
- `mpi`: its rank in MPI, its MPI job's size, and which job. None: it has no other process.
- `poisoned`: whether it has lost a rank, so that its MPI must not be used.
- `process`: its host, number and start.
- `rank`: its number among all ranks of the program, if torch knows it already.
"""


@dataclasses.dataclass(frozen=True)
class Connected:
    """What carries out the operations of a group: its collectives, its messages, and its store."""

    engine: NamedOperations
    messages: Messages
    store: dist.Store
    members: Sequence[Member]

    def free(self) -> None:
        """Leave: operations in flight fail on all ranks. It does not wait."""
        self.engine.free()
        self.messages.free()


class NotYet:
    """In place of the engine and the messages of a group that waits for `reconfigure`.

    Rank and size are those that the program gave.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.ranks = rank, size, list(range(size))

    def connected(self, store: dist.Store) -> Connected:
        """Return this object as what carries out a group's operations.

        This rank writes into the store which one of an MPI job it is, for those that go on without
        it.
        """
        mine: Any = self
        own = _own()
        if own["mpi"] is not None:
            store.set(f"MPI rank {own['mpi'][0]}", json.dumps(own))
        return Connected(mine, mine, store, [])

    def look_for_lost(self, _where: str) -> NoReturn:
        """Refuse what asks for it, a monitored barrier."""
        raise _not_connected()

    def close(self) -> None:
        """Return: nothing is in flight."""

    free = close

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _not_connected()


def _not_connected() -> UsageError:
    found = "init_process_group(enable_reconfigure=True) has not connected its ranks"
    remedy = "Call reconfigure first, with the handles of all members"
    return UsageError("an operation of a process group", found, remedy)


def connect_members(
    of_name: dist.Store, rank: int, ranks: Sequence[int], timeout: datetime.timedelta
) -> Connected:
    """Connect the members of a new group. Blocking and collective.

    Members of no other group write in `of_name` at the same time. `ranks` are the members' numbers
    in error messages. `timeout` is for all members to arrive.
    """
    store, members = meet(of_name, rank, ranks, _own(), timeout)
    if world_ranks := _ranks_in_one_mpi(members):
        comm = _comm_of_mpi(world_ranks)
    else:
        comm = connect(rank, len(ranks), _allgather_by(store, rank, ranks))
    return _over(comm, ranks, store, members)


def connect_again(
    of_number: dist.Store, rank: int, size: int, timeout: datetime.timedelta
) -> Connected:
    """Connect the members of a group that goes on with other ranks. Blocking and collective.

    Only these members write in `of_number`. `timeout` is for all of it.

    Raises:
        gradred.UsageError: the members are on several hosts, and one has lost a rank, or they are
            not in one MPI job.
    """
    ranks = range(size)
    store, members = meet(of_number, rank, ranks, _own(), timeout, bounds_store=True)
    allgather = _allgather_by(store, rank, ranks, timeout.total_seconds())
    comm = by_memory(rank, size, allgather)
    if isinstance(comm, str):
        why = comm
        for other, member in enumerate(members):
            if member["poisoned"]:
                found = f"{why}, and rank {other} has lost a rank, for which their MPI may wait"
                raise UsageError("reconfigure", found, "Start the job again")
        if world_ranks := _ranks_in_one_mpi(members):
            comm = _comm_of_mpi(world_ranks)
        else:
            comm = by_mpi(rank, size, allgather, why)
    return _over(comm, ranks, store, members)


def _over(
    comm: Comm, ranks: Sequence[int], store: dist.Store, members: Sequence[Member]
) -> Connected:
    with contextlib.ExitStack() as undone:
        undone.callback(comm.free)
        engine = NamedOperations(comm, ranks=ranks)
        undone.callback(engine.free)
        engine.let_streams_wait()
        messages = messages_of(comm, ranks, engine.look_for_lost)
        undone.pop_all()
    return Connected(engine, messages, store, members)


def _own() -> Member:
    known = dist.is_initialized()
    return {
        "groups": dist.distributed_c10d._world.group_count,
        "mpi": _own_place(),
        "poisoned": _core.poisoned(),
        "process": [_core.host_id(), os.getpid(), proc.read_stat(os.getpid()).started],
        "rank": dist.get_rank() if known else None,
    }


def _own_place() -> list[Any] | None:
    if not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1:
        return None
    return [MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size(), pmi.job]


def _ranks_in_one_mpi(members: Sequence[Member]) -> list[int]:
    """The members' ranks in MPI, by rank in the group. Empty: they cannot use one MPI job.

    torch may number the ranks differently from MPI.
    """
    known = [one["mpi"] for one in members if one["mpi"] is not None and not one["poisoned"]]
    ranks = [rank for rank, *_ in known]
    same = len({tuple(of) for _, *of in known}) == 1
    return ranks if len(set(ranks)) == len(members) and same else []


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
    store: dist.Store, rank: int, ranks: Sequence[int], limit: float | None = None
) -> Callable[[bytes], list[bytes]]:
    turns = itertools.count()

    def allgather(mine: bytes) -> list[bytes]:
        turn = next(turns)
        store.set(f"{turn}/{rank}", mine)
        return [
            get(store, f"{turn}/{other}", f"rank {called} has not come further", limit)
            for other, called in enumerate(ranks)
        ]

    return allgather


def waiting_members(store: dist.Store) -> list[Member]:
    """The ranks of this process's MPI job that have made a group without ranks in the store."""
    place = _own_place()
    keys = [f"MPI rank {rank}" for rank in range(0 if place is None else place[1])]
    return [json.loads(store.get(key)) for key in keys if store.check([key])]


_left_out: set[int] = set()  # ranks of this process's MPI job


def report_left_out(before: Sequence[Member], now: Sequence[Member]) -> None:
    """Report to the launcher which ranks of its job are members no more, and which are again.

    The job then does not end because a rank ends, or has ended, that the members go on without.
    """
    if (place := _own_place()) is None:
        return
    past, present = (
        {one["mpi"][0] for one in members if one["mpi"] and one["mpi"][1:] == place[1:]}
        for members in (before, now)
    )
    _left_out.update(past)
    _left_out.difference_update(present)
    _core.go_on_without(sorted(_left_out))
