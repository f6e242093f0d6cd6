"""Process groups that go on with fewer, more or other ranks: `reconfigure` of torch 2.14.

Each process has a handle for its group, and the program passes to all members the handles of all
members and a number that it has not used before. The members meet in the group's store under that
number, and make the group anew: `gradred.connect`, an engine, messages. Nothing of the old group is
used, so it does not matter who has ended, left, or comes for the first time.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from gradred.errors import UsageError, UsageTypeError, type_of
from gradred.torch_distributed.backend import CALLED_BY_TORCH, GradredBackend
from gradred.torch_distributed.compiling import left_alone
from gradred.torch_distributed.connecting import (
    Connected,
    Member,
    NotYet,
    connect_again,
    report_left_out,
    waiting_members,
)
from gradred.torch_distributed.messages import InMemory
from gradred.torch_distributed.process_group import ProcessGroupGradred
from gradred.torch_distributed.windows import GradredWindow
from gradred.torch_distributed.work import GradredWork, Tensor


class Reconfigurable:
    """The handle of a group in this process, and how the group gets other ranks.

    All present and later members reach the store under the same keys. Without members the group has
    no ranks yet.
    """

    def __init__(self, store: dist.Store, members: Sequence[Member] = ()) -> None:
        self.handle = f"gradred:{os.getpid()}:{os.urandom(8).hex()}"
        self._store, self._members = store, members
        self._used: set[int] = set()
        self._shrunk = 0
        self.generation = ""  # distinguishes its ranks from those that it had before

    def connect(self, options: Any, limit: float | None) -> Connected:
        """Connect the members that `torch.distributed.ReconfigureOptions` name, and no others.

        Blocking and collective over them. The limit, in seconds, is for options without one.

        Raises:
            TypeError: they are no such options.
            gradred.UsageError: this rank's options are not valid, and nothing has been done. Or
                the members cannot be connected without their MPI, which may wait for lost ranks.
            gradred.TimeoutError: a member has not come in time.
            gradred.PeerLost: a member has ended meanwhile.
        """
        if type(options).__name__ != "ReconfigureOptions":  # which older PyTorch does not have
            found = f"the options are {type_of(options)}"
            raise UsageTypeError("reconfigure", found, "Pass ReconfigureOptions of PyTorch")
        uuid, handles = int(options.uuid), options.handles
        asked = f"reconfigure(uuid={uuid})"
        if isinstance(handles, (set, frozenset)):
            handles = sorted(handles)
        if uuid in self._used:
            remedy = "Pass a new number each time"
            raise UsageError(asked, "this process has already used this uuid", remedy)
        if len(set(handles)) != len(handles) or self.handle not in handles:
            found = f"of the {len(handles)} handles {handles.count(self.handle)} are this rank's"
            if self.handle in handles and handles.count(self.handle) == 1:
                found = "a handle is there twice"
            remedy = "Pass what get_reconfigure_handle returns on each member, once"
            raise UsageError(asked, found, remedy)
        if options.hints:
            found = f"gradred knows none of the hints {sorted(options.hints)}"
            raise UsageError(asked, found, "Leave hints out")
        self._used.add(uuid)
        rank = handles.index(self.handle)
        made = self._connect(f"uuid {uuid}", rank, len(handles), options.timeout, limit)
        self.generation = f"uuid {uuid}"
        return made

    def without(
        self, excluded: Sequence[int], rank: int, size: int, limit: float | None
    ) -> tuple[Connected, Reconfigurable]:
        """Connect the group's ranks except the excluded ones, not this one, as a new group.

        Blocking and collective over the others.

        Returns:
            The new group's ranks, and how it gets other ones.
        """
        self._shrunk += 1
        name = f"shrink {self._shrunk} without {','.join(map(str, excluded))}"
        smaller = sum(one < rank for one in excluded)
        made = self._connect(name, rank - smaller, size - len(excluded), None, limit)
        return made, Reconfigurable(dist.PrefixStore(name, self._store), made.members)

    def _connect(
        self,
        name: str,
        rank: int,
        size: int,
        timeout: datetime.timedelta | None,
        limit: float | None,
    ) -> Connected:
        if timeout is None:
            default: datetime.timedelta = dist.distributed_c10d.default_pg_timeout
            timeout = default if limit is None else datetime.timedelta(seconds=limit)
        made = connect_again(dist.PrefixStore(name, self._store), rank, size, timeout)
        before = self._members or waiting_members(self._store)
        self._members = made.members
        report_left_out(before, made.members)
        return made


@left_alone
class ReconfigurableGroup(ProcessGroupGradred):
    """A group of gradred that can get other ranks, by `reconfigurable`."""

    def __init__(
        self,
        made: Connected,
        timeout: datetime.timedelta | None,
        reconfigurable: Reconfigurable,
    ) -> None:
        super().__init__(made, timeout)
        self._reconfigurable, self._kind = reconfigurable, type(self)
        self._windows = 0  # made so far

    @property
    def generation(self) -> str:
        """A text that distinguishes the group's present ranks from those that it had before."""
        return self._reconfigurable.generation

    @property
    def supports_reconfigure(self) -> bool:
        """Whether this PyTorch has `reconfigure`, and no other backend serves a device here."""
        return CALLED_BY_TORCH and not self.other_devices.are_there()

    def get_reconfigure_handle(self) -> str:
        """The handle of this process in the group, which other members pass to `reconfigure`."""
        self._require_one_backend("get_reconfigure_handle")
        return self._reconfigurable.handle

    def reconfigure(self, opts: Any) -> GradredWork:
        """Go on with the ranks that `opts` names, and fail what is in flight. Blocks.

        See `torch.distributed._reconfigure`. If this raises an error, the group is as before.
        """
        self._require_one_backend("reconfigure")
        made, old = self._reconfigurable.connect(opts, self._limit), self._free
        self._adopt(made)
        old()
        self._windows = 0
        _know_ranks(self, made.members)
        if self is dist.group.WORLD:  # the members' next groups need one name
            world = dist.distributed_c10d._world
            world.group_count = max(member["groups"] for member in made.members)
        return GradredWork([], None, [], self._limit)

    @property
    def supports_shrinking(self) -> bool:
        """Whether `torch.distributed.shrink_group` can leave ranks of the group out."""
        return self.supports_reconfigure and not isinstance(self._engine, NotYet)

    def shrink(
        self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: Any = None
    ) -> GradredBackend:
        """Return the backend of a group of the other ranks, all of which call it. Blocks.

        See `torch.distributed.shrink_group`, which calls this.
        """
        self._require_one_backend("shrink")
        if opts_override is not None:
            found = "gradred has no options for a group"
            raise UsageError("shrink_group(pg_options=...)", found, "Leave pg_options out")
        if shrink_flags & dist.distributed_c10d.SHRINK_ABORT:
            self.abort()
        made, again = self._reconfigurable.without(
            ranks_to_exclude, self._own_rank, self._ranks, self._limit
        )
        limit = None if self._limit is None else datetime.timedelta(seconds=self._limit)
        group = self._kind(made, limit, again)
        if group.backend is None:
            raise UsageError("shrink", "this PyTorch has no shrink_group", "Use 2.14 or newer")
        group.backend.keep(group)
        return group.backend

    @property
    def supports_window(self) -> bool:
        """Whether the ranks share memory, so that they can map each other's."""
        return CALLED_BY_TORCH and isinstance(self._messages, InMemory)

    def new_window(self, tensor: Tensor | None = None) -> GradredWindow:
        """Make a window, and register a tensor with it if one is passed. Collective.

        See `torch.distributed._new_window`.
        """
        if not self.supports_window:
            found = "the ranks of the group do not share memory, or are not connected yet"
            raise UsageError("new_window", found, "Send the data to ranks of other hosts")
        window = GradredWindow(self, self._windows)
        self._windows += 1
        if tensor is not None:
            window.tensor_register(tensor)
        return window

    def _require_one_backend(self, asked: str) -> None:
        if self.other_devices.are_there():
            found = "the group has multiple backends, and the others keep their ranks"
            raise UsageError(asked, found, 'Make the group with "gradred" alone')


def _know_ranks(group: dist.ProcessGroup, members: Sequence[Member]) -> None:
    """Correct torch's table of the group: the ranks of the program, and those in the group."""
    numbers = [member["rank"] for member in members]
    if group is dist.group.WORLD or None in numbers or len(set(numbers)) != len(numbers):
        numbers = list(range(len(members)))
    table = dist.distributed_c10d._world.pg_group_ranks
    if group in table:
        table[group] = {number: rank for rank, number in enumerate(numbers)}
