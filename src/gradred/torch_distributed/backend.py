"""What torch's C++ code asks of a process group, from PyTorch 2.14 on.

torch's functions in Python call the methods of gradred's group, which is the fast way. Its C++ code
looks for a `Backend` in the group: hooks, questions such as `supports_window`, the store of the
group. An older PyTorch cannot call a `Backend` that is written in Python.
"""

from __future__ import annotations

import datetime
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

from gradred.errors import PeerLost, UsageError
from gradred.torch_distributed.methods import METHODS

if TYPE_CHECKING:
    from gradred.torch_distributed.reconfigure import ReconfigurableGroup


def _is_callable_by_torch() -> bool:
    """Whether this PyTorch calls a `Backend` that is written in Python."""
    kind: Any = type("Tried", (c10d.Backend,), {})
    try:
        kind(0, 1)
    except TypeError:
        return False
    return hasattr(c10d.Backend, "supports_reconfigure")


CALLED_BY_TORCH = _is_callable_by_torch()

OPERATIONS = (*(name for name in METHODS if name != "gather_single"), "allreduce_coalesced")
"""The group's methods that torch's C++ code calls."""


class GradredBackend(c10d.Backend):
    """The `Backend` of a group of gradred, which keeps this object alive."""

    def __init__(self, group: ReconfigurableGroup, timeout: datetime.timedelta) -> None:
        super().__init__(group.rank(), group.size())
        self._of = weakref.ref(group)
        self._own: type[ReconfigurableGroup] = type(group)
        self._options = self.Options("gradred", timeout)
        self._last = threading.local()
        self._kept: ReconfigurableGroup | None = None

    @property
    def _group(self) -> ReconfigurableGroup:
        group = self._of()
        if group is None:
            raise UsageError("a backend of gradred", "its group is gone", "Keep the group")
        return group

    @property
    def last_work(self) -> Any:
        """The work of the last operation that torch's C++ code has started in this thread."""
        return getattr(self._last, "work", None)

    def getBackendName(self) -> str:  # noqa: N802 (torch's names)
        """The name of the backend."""
        return "gradred"

    name = getBackendName

    def rank(self) -> int:
        """This rank's number in the group."""
        return int(self._group.rank())

    def size(self) -> int:
        """The number of ranks."""
        return int(self._group.size())

    @property
    def options(self) -> Any:
        """Name and time limit of the backend."""
        return self._options

    supports_splitting = False  # torch makes new groups instead
    supports_time_estimate = False
    supports_coalescing = False
    """By this torch starts each message of a batch by itself, which is faster.

    Operations between `_start_coalescing` and `_end_coalescing` have one work all the same."""

    @property
    def supports_shrinking(self) -> bool:
        """Whether a group of some of the ranks can be made of this one."""
        return self._group.supports_shrinking

    def shrink(
        self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None
    ) -> GradredBackend:
        """Return the backend of a group of the other ranks. Blocks."""
        return self._group.shrink(ranks_to_exclude, shrink_flags, opts_override)

    def keep(self, group: ReconfigurableGroup) -> None:
        """Keep the group alive until `shutdown`, for a group of torch's that has only this."""
        self._kept = group

    @property
    def supports_reconfigure(self) -> bool:
        """Whether the group can go on with other ranks."""
        return self._kept is None and self._group.supports_reconfigure

    def get_reconfigure_handle(self) -> str:
        """The handle of this process in the group."""
        self._require_group_of_gradred("get_reconfigure_handle")
        return self._group.get_reconfigure_handle()

    def reconfigure(self, opts: Any) -> Any:
        """Go on with other ranks. Blocks."""
        self._require_group_of_gradred("reconfigure")
        return self._group.reconfigure(opts)

    def _require_group_of_gradred(self, asked: str) -> None:
        if self._kept is not None:
            found = "shrink_group made the group, and torch counts its ranks once only"
            raise UsageError(asked, found, "Call shrink_group again, or reconfigure from the start")

    @property
    def supports_window(self) -> bool:
        """Whether the ranks can map each other's memory."""
        return self._kept is None and self._group.supports_window

    def new_window(self, tensor: torch.Tensor | None = None) -> Any:
        """Make a window. Collective."""
        if self._kept is not None:
            found = "shrink_group made the group, and torch's own groups take only torch's windows"
            raise UsageError("new_window", found, "Make one in dist.new_group()")
        return self._group.new_window(tensor)

    def supports_tensor_alloc(self, device: Any) -> bool:
        """Whether `allocate_tensor` supports the device. C++ code asks with a GPU's number."""
        return isinstance(device, torch.device) and self._group.supports_tensor_alloc(device)

    def allocate_tensor(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate a tensor of `size` elements as a shared array (`gradred.empty`)."""
        return self._group.allocate_tensor(size, dtype=dtype, device=device)

    def get_error(self) -> Any:
        """REMOTE_ERROR once a rank was lost, COMM_ERROR after `abort`, otherwise SUCCESS."""
        group = self._of()
        if group is None or group.has_left:
            return c10d.ErrorType.COMM_ERROR
        try:
            group.look_for_lost()
        except PeerLost:
            return c10d.ErrorType.REMOTE_ERROR
        return c10d.ErrorType.SUCCESS

    def abort(self) -> None:
        """Make operations in flight fail on all ranks."""
        if (group := self._of()) is not None:
            group.abort()

    def shutdown(self) -> None:
        """Make operations in flight fail on all ranks, and free the group."""
        if (group := self._of()) is not None:
            group.shutdown()
        self._kept = None

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Set the time limit of later operations."""
        self._options._timeout = timeout
        self._group.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def eager_connect_single_device(self, device: torch.device | None = None) -> None:
        """Nothing is left to do: the ranks of a group are connected from its start."""

    def _set_sequence_number_for_group(self) -> None:
        """Nothing is left to do: all ranks count from 0."""

    def _get_sequence_number_for_group(self) -> int:
        return self._group._get_sequence_number_for_group()

    def start_coalescing(self) -> None:
        """Start a part of the program whose operations have one work."""
        self._own._start_coalescing(self._group, torch.device("cpu"))

    _start_coalescing = start_coalescing

    def end_coalescing(self) -> Any:
        """Return one work for all operations since `start_coalescing`."""
        return self._own._end_coalescing(self._group, torch.device("cpu"))

    _end_coalescing = end_coalescing

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """`torch.distributed.monitored_barrier`. Blocks."""
        self._group.monitored_barrier(opts.timeout, wait_all_ranks)


def _carried_out_by_group(name: str) -> Callable[..., Any]:
    def method(self: GradredBackend, *given: Any, **named: Any) -> Any:
        work = getattr(self._own, name)(self._group, *given, **named)
        self._last.work = work
        return work

    method.__name__ = name
    method.__doc__ = f"Carry out the group's `{name}`."
    return method


for _name in OPERATIONS:
    setattr(GradredBackend, _name, _carried_out_by_group(_name))
