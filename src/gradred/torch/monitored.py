"""A barrier that says which ranks did not come: `torch.distributed.monitored_barrier`.

As torch's of gloo: each rank sends a message to rank 0 of the group, which answers all of them once
all have come.
"""

from __future__ import annotations

import datetime
import functools
import time
from typing import Any

import torch
import torch.distributed as dist

from gradred.errors import PeerLost, TimeoutError, TransportError, explain  # noqa: A004
from gradred.torch.messages import Message, Messages

_TAG = 32767  # the highest that each MPI knows; programs count from 0


class MonitoredBarrier:
    """Of the ranks of a group.

    Args:
        messages: between them.
        rank: this one.
        size: how many there are.
    """

    def __init__(self, messages: Messages, rank: int, size: int) -> None:
        self._messages, self._rank, self._size = messages, rank, size
        self._word = torch.zeros(1, dtype=torch.uint8)
        # Of barriers that have failed: their messages may still come, to memory that has to live.
        self._open: list[tuple[Message, torch.Tensor]] = []
        self._answer: tuple[Message, torch.Tensor] | None = None

    def wait(self, seconds: float, wait_all_ranks: bool) -> None:
        """Block until all ranks have come.

        Raises:
            gradred.TimeoutError: on rank 0, with the first rank that did not come in time, or all
                of them; on others where rank 0 has not answered.
        """
        end = time.monotonic() + seconds
        if self._rank != 0:
            return self._wait_for_answer(end, seconds)
        late: list[int] = []
        coming = [(rank, *self._receive(rank)) for rank in range(1, self._size)]
        for rank, message, _ in coming:
            if self._is_late(message, end, others=bool(late)):
                late.append(rank)
            if late and not wait_all_ranks:
                break
        if late:
            self._open += [(message, word) for _, message, word in coming]
            whom = ", ".join(f"rank {rank}" for rank in late)
            raise TimeoutError(
                explain(
                    "monitored_barrier",
                    f"within {seconds:g} s it has not been reached by {whom}",
                    "See what these ranks do, or pass a longer timeout",
                )
            )
        for rank in range(1, self._size):
            self._messages.send(self._word, rank, _TAG).wait()
        return None

    def _receive(self, source: int) -> tuple[Message, torch.Tensor]:
        word = torch.zeros(1, dtype=torch.uint8)
        return self._messages.receive(word, source, _TAG), word

    def _is_late(self, message: Message, end: float, others: bool = False) -> bool:
        """`others`: some are. At the first, gloo has closed its connections to all."""
        try:
            message.wait(max(0.001, end - time.monotonic()))
        except TimeoutError:
            return True
        except PeerLost:
            raise
        except TransportError:
            if not others:
                raise
            return True
        return False

    def _wait_for_answer(self, end: float, seconds: float) -> None:
        """Rank 0 does not answer where one is late: what it says next is for the next barrier."""
        self._open.append((self._messages.send(self._word, 0, _TAG), self._word))
        answer = self._answer = self._answer or self._receive(0)
        if self._is_late(answer[0], end):
            raise TimeoutError(
                explain(
                    "monitored_barrier",
                    f"this rank has come, and rank 0 has not let it pass within {seconds:g} s",
                    "See rank 0's error, which names the ranks that did not come",
                )
            )
        self._answer = None
        self._open = [one for one in self._open if not one[0].done()]


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
