"""A barrier that says which ranks did not come: `torch.distributed.monitored_barrier`.

Each rank counts its arrival in the group's store, where rank 0 looks, and lets all pass once all
have come.
"""

from __future__ import annotations

import datetime
import functools
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from gradred.errors import TimeoutError, explain  # noqa: A004

_LOOK_EVERY = 0.01  # seconds


class MonitoredBarrier:
    """Of the ranks of a group.

    Args:
        store: of this group alone.
        rank: this one.
        size: how many there are.
        look: after the ranks: raises PeerLost where one has ended.
    """

    def __init__(
        self, store: dist.Store, rank: int, size: int, look: Callable[[str], None]
    ) -> None:
        self._store, self._rank, self._size, self._look = store, rank, size, look
        self._met = [0] * size  # on rank 0: arrivals that it has seen; else, at 0: answers

    def wait(self, seconds: float, wait_all_ranks: bool) -> None:
        """Block until all ranks have come.

        Raises:
            gradred.TimeoutError: on rank 0, with the first rank that did not come in time, or all
                of them; on others where rank 0 has not answered.
            gradred.PeerLost: a rank has ended.
        """
        end = time.monotonic() + seconds
        if self._rank != 0:
            return self._wait_for_answer(end, seconds)
        late: list[int] = []
        before = list(self._met)
        for rank in range(1, self._size):
            if not self._comes(rank, f"arrived/{rank}", end):
                late.append(rank)
            if late and not wait_all_ranks:
                break
        if late:
            self._met = before  # who has come takes that back
            whom = ", ".join(f"rank {rank}" for rank in late)
            raise TimeoutError(
                explain(
                    "monitored_barrier",
                    f"within {seconds:g} s it has not been reached by {whom}",
                    "See what these ranks do, or pass a longer timeout",
                )
            )
        for rank in range(1, self._size):
            self._store.add(f"passes/{rank}", 1)
        return None

    def _comes(self, index: int, key: str, end: float) -> bool:
        """Whether the count of this key has grown in time; that counts as seen."""
        while self._store.add(key, 0) <= self._met[index]:
            self._look("monitored_barrier")
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_EVERY)
        self._met[index] += 1
        return True

    def _wait_for_answer(self, end: float, seconds: float) -> None:
        """Who has waited in vain has not come: the next barrier is another one."""
        mine, answers = f"arrived/{self._rank}", f"passes/{self._rank}"
        self._store.add(mine, 1)
        if self._comes(0, answers, end):
            return
        self._store.add(mine, -1)
        if self._comes(0, answers, 0):  # just now
            return
        raise TimeoutError(
            explain(
                "monitored_barrier",
                f"this rank has come, and rank 0 has not let it pass within {seconds:g} s",
                "See rank 0's error, which names the ranks that did not come",
            )
        )


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
