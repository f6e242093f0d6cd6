"""`torch.distributed.split_group` of groups of gradred, also where no device is a GPU."""

from __future__ import annotations

import collections
import datetime
import functools
import hashlib
import weakref
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as core

from gradred.errors import UsageError
from gradred.torch_distributed.compiling import left_alone
from gradred.torch_distributed.reconfigure import ReconfigurableGroup

_ASKED = "split_group"

_made: weakref.WeakKeyDictionary[Any, collections.Counter[str]] = weakref.WeakKeyDictionary()
"""How often groups have been split, by which members."""


@left_alone
class SplittableGroup(ReconfigurableGroup):
    """A group of gradred that can make groups of some of its ranks."""

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: datetime.timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[Any] | None = None,
    ) -> Any:
        """Make a group of these ranks of the group, which torch.distributed then knows.

        Blocking and collective over the ranks named. Returns None on any other rank.
        """
        if opts is not None or device_types is not None:
            found = "a group of gradred has no options, and the devices of its parent"
            raise UsageError(f"{_ASKED}(opts=..., device_types=...)", found, "Leave them out")
        made = _split(self, [ranks], timeout, group_desc, group_name)
        return None if made == dist.GroupMember.NON_GROUP_MEMBER else made


def _require_ranks(ranks: Sequence[int], size: int) -> None:
    """Raise UsageError unless these are some of a group's ranks, each once."""
    if not ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(size)):
        found = f"{list(ranks)} are no ranks of a group of {size}, or not each once"
        raise UsageError(_ASKED, found, "Name ranks of the group that is split, each once")


def serve_splits() -> None:
    """Patch torch's `split_group` to split groups of gradred; done once.

    torch's own function refuses a group without a GPU.
    """
    torchs = getattr(core, "split_group", None)
    if torchs is None or hasattr(torchs, "_of_gradred"):
        return

    @functools.wraps(torchs)
    def split_group(
        parent_pg: Any = None,
        split_ranks: list[list[int]] | None = None,
        timeout: datetime.timedelta | None = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        **others: Any,
    ) -> Any:
        parent = parent_pg or core._get_default_group()
        if not (isinstance(parent, SplittableGroup) or _was_shrunk(parent)):
            others |= {"pg_options": pg_options, "group_desc": group_desc, "timeout": timeout}
            return torchs(parent_pg, split_ranks, **others)
        _require_no_options(pg_options, others, parent)
        return _split(parent, split_ranks or [], timeout, group_desc)

    split_group._of_gradred = True  # type: ignore[attr-defined]
    core.split_group = dist.split_group = split_group


def _was_shrunk(group: Any) -> bool:
    """Whether it is a group that torch's `shrink_group` has made of a group of gradred."""
    backend, _ = core._world.pg_map.get(group, ("", None))
    return type(group) is dist.ProcessGroup and backend == "gradred"


def _require_no_options(pg_options: Any, others: dict[str, Any], parent: Any) -> None:
    if pg_options is not None:
        raise UsageError(f"{_ASKED}(pg_options=...)", "gradred has no options", "Leave it out")
    backend = others.pop("backend", None)
    if backend is not None and str(backend) != core._world.pg_map[parent][0]:
        found = f"the group's backend is {core._world.pg_map[parent][0]!r}"
        raise UsageError(f"{_ASKED}(backend={str(backend)!r})", found, "Leave it out")
    if others:
        raise TypeError(f"{_ASKED}() got an unexpected keyword argument {next(iter(others))!r}")


def _split(
    parent: Any,
    split_ranks: Sequence[Sequence[int]],
    timeout: datetime.timedelta | None,
    group_desc: str | None,
    group_name: str | None = None,
) -> Any:
    _require_ranks([rank for ranks in split_ranks for rank in ranks], parent.size())
    own, world = parent.rank(), core._world
    mine = next((ranks for ranks in split_ranks if own in ranks), split_ranks[0])
    members = [dist.get_global_rank(parent, rank) for rank in mine]
    if own not in mine:
        return dist.GroupMember.NON_GROUP_MEMBER
    # torch's own names count all groups of the process, of which members may have made other ones.
    counts = _made.setdefault(parent, collections.Counter())
    whose = f"{getattr(parent, 'generation', '')} {members}"
    named_by = f"{parent.group_name} {whose} {counts[whose]}"
    name = hashlib.sha1(named_by.encode(), usedforsecurity=False).hexdigest()
    backend, store = world.pg_map[parent]
    named = {} if group_desc is None else {"group_desc": group_desc}
    made, _ = core._new_process_group_helper(
        *(len(mine), list(mine).index(own), members, backend, store),
        group_name=group_name or name,
        timeout=timeout or core._get_default_timeout(core.Backend(backend)),
        **named,
    )
    world.pg_group_ranks[made] = {rank: place for place, rank in enumerate(members)}
    counts[whose] += 1
    return made
