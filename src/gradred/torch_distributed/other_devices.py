"""Tensors on devices that another backend serves, as with `"cpu:gradred,cuda:nccl"`.

torch asks for a backend for each device, but a backend written in Python replaces the whole group.
So gradred's group passes such tensors to a second group, which has the same ranks and the requested
backend. All ranks create that group when the first such tensor arrives.
"""

from __future__ import annotations

import datetime
import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def handing_on(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method pass tensors on other devices to the same method of another group.

    Such methods must not call each other. Otherwise an operation could be split between groups.
    """

    @functools.wraps(method)
    def hand_on(self: Any, *arguments: Any, **named: Any) -> Any:
        x = _first_tensor(arguments)
        if x is None and named:
            x = _first_tensor(named.values())
        if x is None or (x.is_cpu and not self.other_devices.has_the_host()):
            return method(self, *arguments, **named)
        other = self.other_devices.group_for(x.device)
        if other is None:
            return method(self, *arguments, **named)
        return getattr(other, name)(*arguments, **named)

    return hand_on


def _first_tensor(arguments: Iterable[Any]) -> torch.Tensor | None:
    """The first tensor in the arguments, or in lists of them."""
    for one in arguments:
        if type(one) is list and one and type(one[0]) is torch.Tensor:  # asking this is quicker
            return one[0]
        if isinstance(one, (list, tuple)):
            if (found := _first_tensor(one)) is not None:
                return found
        elif isinstance(one, torch.Tensor):
            return one
    return None


class OtherDevices:
    """The other backends that the program requested, and their groups, of one time limit."""

    def __init__(self, group: Any, timeout: datetime.timedelta | None) -> None:
        self._group: Callable[[], Any] = weakref.ref(group)  # the group owns this object
        self._timeout = timeout or distributed_c10d.default_pg_timeout
        self._made: dict[str, Any] = {}  # groups by backend
        self._has_the_host: bool | None = None  # None until torch has registered the group
        self._backends: dict[str, str | None] = {}  # backend by device type, once registered
        self._making = threading.Lock()

    def is_being_made(self) -> bool:
        """Whether torch has not registered the group yet. It already asks for backends then."""
        return self._group() not in distributed_c10d._world.pg_map

    def backend_for(self, device: torch.device) -> str | None:
        """The name of the other backend for a device. None: no other was requested."""
        kind = device.type
        if kind not in self._backends:
            found = self._read_backend(kind)
            if self.is_being_made():
                return found
            self._backends[kind] = found
        return self._backends[kind]

    def _read_backend(self, wanted: str) -> str | None:
        asked = str(distributed_c10d._world.pg_backend_config.get(self._group(), ""))
        pairs = (one.partition(":") for one in asked.split(","))
        name = {kind: backend for kind, _, backend in pairs}.get(wanted)
        return None if name in (None, "", "gradred") else name

    def are_there(self) -> bool:
        """Whether another backend was requested for any device."""
        asked = str(distributed_c10d._world.pg_backend_config.get(self._group(), ""))
        return any(one.rpartition(":")[2] not in ("", "gradred") for one in asked.split(","))

    def has_the_host(self) -> bool:
        """Whether another backend was requested for tensors in host memory."""
        if self._has_the_host is None:
            self._has_the_host = self.backend_for(torch.device("cpu")) is not None
        return self._has_the_host

    def group_for(self, device: torch.device) -> Any:
        """The group that serves a device, or None. All ranks have to make the first call."""
        name = self.backend_for(device)
        if name is None:
            return None
        with self._making:
            if name not in self._made:
                self._made[name] = self._make(name)
            return self._made[name]

    def _make(self, backend: str) -> Any:
        """Create a group as `new_group` does.

        `new_group` itself would also require a call by ranks outside this group.
        """
        world, group = distributed_c10d._world, self._group()
        ranks = dist.get_process_group_ranks(group)
        made, _ = distributed_c10d._new_process_group_helper(
            group.size(),
            group.rank(),
            ranks,
            backend,
            world.pg_map[group][1],
            group_name=f"{world.pg_names[group]} {backend}",  # the same on all ranks
            timeout=self._timeout,
        )
        world.pg_group_ranks[made] = {rank: place for place, rank in enumerate(ranks)}
        return made


def serve_batches() -> None:
    """Patch torch's `batch_isend_irecv` to use the group for each tensor's device; done once.

    torch starts a batch as a unit only in a plain `ProcessGroup`. If NCCL's messages between two
    ranks were started one by one, they would wait for each other.
    """
    torchs = distributed_c10d.batch_isend_irecv
    if hasattr(torchs, "__wrapped__"):
        return

    @functools.wraps(torchs)
    def batch_isend_irecv(p2p_op_list: Any) -> Any:
        return torchs([served(one) for one in p2p_op_list])

    distributed_c10d.batch_isend_irecv = dist.batch_isend_irecv = batch_isend_irecv


def served(one: Any) -> Any:
    """Return an operation of a batch, moved to the group that serves its tensor."""
    if not isinstance(one, dist.P2POp):
        return one
    others = getattr(one.group or dist.group.WORLD, "other_devices", None)
    other = None if others is None else others.group_for(one.tensor.device)
    return one if other is None else dist.P2POp(one.op, one.tensor, one.peer, other, one.tag)
