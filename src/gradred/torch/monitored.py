"""A barrier that says which ranks did not come: `torch.distributed.monitored_barrier`.

Each rank tells its arrival in the group's store, where rank 0 looks, and lets all pass once all
have come.
"""

from __future__ import annotations

import datetime
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from gradred._util import clock
from gradred.errors import TimeoutError, explain  # noqa: A004

_LOOK_EVERY = 0.01  # seconds
_ABSENT, _ARRIVED, _PASSES, _GONE = "absent", "arrived", "passes", "gone"


class MonitoredBarrier:
    """Of the ranks of a group. Its errors are in torch's words, which programs look for.

    Each call of a rank other than 0 is a key of the store, whose value only grows: from `_ARRIVED`
    either to `_PASSES`, by rank 0, or to `_GONE`, by a rank whose time is over.

    Args:
        store: of this group alone.
        rank: this one.
        ranks: what errors call all of them, by rank.
        look: after the ranks: raises PeerLost where one has ended.
    """

    def __init__(
        self, store: dist.Store, rank: int, ranks: Sequence[int], look: Callable[[str], None]
    ) -> None:
        self._store, self._rank, self._look = store, rank, look
        self._ranks, self._size = ranks, len(ranks)
        self._calls = [0] * len(ranks)  # of each rank: on rank 0 the one that is met next

    def wait(self, seconds: float, wait_all_ranks: bool) -> None:
        """Block until all ranks have come.

        Raises:
            gradred.TimeoutError: on rank 0, with the first rank that did not come in time, or all
                of them; on others where rank 0 has not answered.
            gradred.PeerLost: a rank has ended.
        """
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
        if not late:  # one may have left again while others came
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
        """`_ABSENT` before the rank has made this call.

        What a comparison expects of a key that nobody has set it gives back; PyTorch 2.1 has no
        way to ask whether there is one.
        """
        return str(self._store.compare_set(key, _ABSENT, _ABSENT).decode())

    def _change(self, key: str, value: str) -> bool:
        """From `_ARRIVED`, unless somebody else has changed it."""
        return bool(self._store.compare_set(key, _ARRIVED, value).decode() == value)

    def _comes(self, rank: int, end: float) -> bool:
        """Whether it comes in time. Calls that it has given up do not count."""
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
                explain(
                    "monitored_barrier",
                    f"Rank {self._ranks[self._rank]} successfully reached monitoredBarrier, but "
                    f"received errors while waiting for send/recv from rank {self._ranks[0]}: "
                    f"no answer in {_ms(seconds)}",
                    f"See rank {self._ranks[0]}'s error, which names the ranks that did not come",
                )
            )


def _late(found: str) -> TimeoutError:
    remedy = "See what the other ranks do, or pass a longer timeout"
    return TimeoutError(explain("monitored_barrier", found, remedy))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:g} ms"


def serve_monitored_barrier() -> None:
    """Have torch's function take groups of gradred, which it leaves to gloo alone; once."""
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
