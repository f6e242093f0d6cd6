"""`torch.distributed.monitored_barrier`: a barrier that reports the ranks that did not arrive.

Each rank writes its arrival to the group's store. Rank 0 reads these keys, and releases all ranks
once all have arrived.
"""

from __future__ import annotations

import datetime
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from gradred._util import clock
from gradred.errors import TimeoutError  # noqa: A004

_LOOK_EVERY = 0.01  # seconds
_ABSENT, _ARRIVED, _PASSES, _GONE = "absent", "arrived", "passes", "gone"


class MonitoredBarrier:
    """The monitored barrier of one group. Programs depend on the wording of its errors in torch.

    Each call of a rank other than 0 has a key in the store, whose value changes once. Rank 0
    changes `_ARRIVED` to `_PASSES`, or the rank itself changes it to `_GONE` when its time is over.

    Only this group uses the store. `ranks` are numbers for error messages.
    """

    def __init__(
        self, store: dist.Store, rank: int, ranks: Sequence[int], look: Callable[[str], None]
    ) -> None:
        self._store, self._rank, self._look = store, rank, look
        self._ranks, self._size = ranks, len(ranks)
        self._calls = [0] * len(ranks)  # per rank; on rank 0, the call to match next

    def wait(self, seconds: float, wait_all_ranks: bool) -> None:
        """Block until all ranks have arrived.

        Raises:
            gradred.TimeoutError: a rank did not arrive in time (on rank 0, which names the first
                such rank or all of them), or rank 0 has not answered (on other ranks).
            gradred.PeerLost: a rank has ended.
        """
        self._look("monitored_barrier")
        end = clock.now() + seconds
        if self._rank != 0:
            return self._wait_for_answer(end, seconds)
        if seconds <= 0:
            raise _late(f"Rank {self._ranks[0]} timed out in monitoredBarrier after {_ms(seconds)}")
        late: list[int] = []
        for rank in range(1, self._size):
            if not self._comes(rank, end):
                late.append(rank)
            if late and not wait_all_ranks:
                break
        if not late:  # a rank may have given up while others arrived
            others = range(1, self._size)
            late = [rank for rank in others if self._value(self._key(rank)) != _ARRIVED]
        if not late:
            late = [rank for rank in others if not self._change(self._key(rank), _PASSES)]
            for rank in others:
                self._calls[rank] += 1
        if late:
            whom = (
                f"Rank{'s' * (len(late) > 1)} {', '.join(str(self._ranks[rank]) for rank in late)}"
            )
            raise _late(f"{whom} failed to pass monitoredBarrier in {_ms(seconds)}")
        return None

    def _key(self, rank: int) -> str:
        return f"call {self._calls[rank]} of {rank}"

    def _value(self, key: str) -> str:
        """The value of a key; `_ABSENT` before the rank has made this call.

        If a key does not exist, `compare_set` returns the expected value. PyTorch 2.1 has no other
        means to check whether a key exists.
        """
        return str(self._store.compare_set(key, _ABSENT, _ABSENT).decode())

    def _change(self, key: str, value: str) -> bool:
        """Change a key from `_ARRIVED`. Returns False if another rank has changed it before."""
        return bool(self._store.compare_set(key, _ARRIVED, value).decode() == value)

    def _comes(self, rank: int, end: float) -> bool:
        """Whether a rank arrives in time. Skips calls that the rank has given up."""
        while (value := self._value(self._key(rank))) != _ARRIVED:
            if value == _GONE:
                self._calls[rank] += 1
            elif not self._may_wait(end):
                return False
        return True

    def _may_wait(self, end: float) -> bool:
        self._look("monitored_barrier")
        if clock.now() > end:
            return False
        time.sleep(_LOOK_EVERY)
        return True

    def _wait_for_answer(self, end: float, seconds: float) -> None:
        key = self._key(self._rank)
        self._calls[self._rank] += 1
        self._store.set(key, _ARRIVED)
        while self._value(key) != _PASSES:
            if self._may_wait(end) or not self._change(key, _GONE):
                continue
            raise TimeoutError(
                "monitored_barrier",
                f"Rank {self._ranks[self._rank]} successfully reached monitoredBarrier, but "
                f"received errors while waiting for send/recv from rank {self._ranks[0]}: "
                f"no answer in {_ms(seconds)}",
                f"See rank {self._ranks[0]}'s error, which names the ranks that did not come",
            )


def _late(found: str) -> TimeoutError:
    remedy = "See what the other ranks do, or pass a longer timeout"
    return TimeoutError("monitored_barrier", found, remedy)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:g} ms"


def serve_monitored_barrier() -> None:
    """Patch torch's function to support groups of gradred, as it supports only gloo; done once."""
    core = dist.distributed_c10d
    torchs = core.monitored_barrier
    if hasattr(torchs, "__wrapped__"):
        return

    @functools.wraps(torchs)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> None:
        own = dist.group.WORLD if group is None else group
        served = getattr(own, "wait_monitored", None)
        if served is None:
            torchs(group, timeout, wait_all_ranks)
            return
        if isinstance(timeout, datetime.timedelta):
            timeout = timeout.total_seconds()
        served(timeout, wait_all_ranks)

    core.monitored_barrier = dist.monitored_barrier = monitored_barrier
