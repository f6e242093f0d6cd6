"""How the members of a new group find each other in torch's store.

The store may hold keys of earlier groups with the same name. They come from this process, or from
workers that torchrun has replaced. The agents of several hosts count such restarts separately. So a
key is valid only if it contains a random word that a rank has just drawn for this meeting:

    other ranks  draw a word each, and write it together with their data
    rank 0       reads these words and data, and draws a word for the meeting. It answers each rank
                 with that word and the rank's own word.
    other ranks  check that the answer contains their own word. If so, they add 1 to the number of
                 present ranks under the word of the meeting. Otherwise the answer, or what rank 0
                 has read, belongs to another meeting, and they wait.
    rank 0       publishes all data once all ranks are present. If a rank writes new data before
                 that, rank 0 starts again.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import time
from collections.abc import Sequence
from typing import Any, cast

import torch.distributed as dist

from gradred._util import clock
from gradred.errors import TimeoutError  # noqa: A004

_FIRST_NAP, _LONGEST_NAP = 0.0005, 0.05  # seconds

Said = Any
"""Data of one rank: anything that JSON can express."""


def meet(
    store: dist.Store,
    rank: int,
    ranks: Sequence[int],
    said: Said,
    timeout: datetime.timedelta,
    *,
    bounds_store: bool = False,
) -> tuple[dist.Store, list[Said]]:
    """Return a part of the store that only this group uses, and the data of all ranks, by rank.

    Blocking and collective. Each rank calls it once, and then makes a call that needs all ranks.

    `ranks` are the members' numbers in error messages. `timeout` is for all ranks to arrive; with
    `bounds_store` also for each wait in the store, in place of its own limit.

    Raises:
        gradred.TimeoutError: a rank did not arrive in time: within `timeout`, or within the store's
            own time limit. Other errors of the store are raised as they are.
    """
    own = _word()
    if len(ranks) == 1:
        return dist.PrefixStore(own, store), [said]
    patience = _Patience(timeout.total_seconds(), bounds_store)
    if rank != 0:
        late = f"rank {ranks[0]} has not come, or waits for others,"
        return _follow(store, rank, own, said, patience, late)
    return _lead(store, ranks, own, said, patience)


def _word() -> str:
    return os.urandom(8).hex()


class _Patience:
    """Sleeps between checks, for longer and longer times, up to a time limit."""

    def __init__(self, limit: float, bounds_store: bool) -> None:
        self._limit, self._begin, self._bounds_store = limit, clock.now(), bounds_store
        self._nap = _FIRST_NAP

    def get(self, store: dist.Store, key: str, missing: str) -> bytes:
        """Return the value of a key, as `get` does."""
        left = max(0.0, self._begin + self._limit - clock.now()) if self._bounds_store else None
        return get(store, key, missing, left)

    def nap(self, missing: str) -> None:
        if clock.now() - self._begin > self._limit:
            raise _late(f"{missing} within {self._limit:g} s")
        time.sleep(clock.nap(self._nap))
        self._nap = min(2 * self._nap, _LONGEST_NAP)


def _late(found: str) -> TimeoutError:
    remedy = "See what the other ranks do, or pass a longer timeout"
    return TimeoutError("a process group of gradred", found, remedy)


_LEAST_WAIT = 0.001  # seconds; the stores take 0 for "no limit"


def get(store: dist.Store, key: str, missing: str, limit: float | None = None) -> bytes:
    """Return the value of a key. Blocks until it exists.

    `missing` is what is missing without it, for the error. `limit` is in seconds. None: the store's
    own.

    Raises:
        gradred.TimeoutError: the time limit is over. The error says what is missing.
    """
    begin = clock.now()
    try:
        if limit is not None:
            store.wait([key], datetime.timedelta(seconds=max(limit, _LEAST_WAIT)))
        return cast("bytes", store.get(key))
    except RuntimeError as error:  # newer PyTorch has a class for it, DistStoreError
        if not _IS_LATE.search(str(error)):
            raise
        raise _late(f"{missing} within {clock.now() - begin:.3g} s") from error


# "Socket Timeout", "wait timeout after 300000ms", "Timeout waiting for key", "timed out"
_IS_LATE = re.compile("time(d )?out", re.IGNORECASE)


def _lead(
    store: dist.Store, ranks: Sequence[int], own: str, said: Said, patience: _Patience
) -> tuple[dist.Store, list[Said]]:
    size, others = len(ranks), range(1, len(ranks))
    read: dict[int, bytes] = {}
    meeting = own
    while True:
        now = {
            rank: patience.get(store, f"word of {rank}", f"rank {ranks[rank]} has not come")
            for rank in others
        }
        if now != read:
            read, meeting = now, _word()
            store.set("present in", "")
            for rank, text in read.items():
                store.set(f"answer to {rank}", json.dumps([meeting, json.loads(text)[0]]))
        present = store.add(f"{meeting}/present", 0)
        if present == size - 1:
            break
        patience.nap(f"{size - 1 - present} of {size} ranks have not come")
    part = dist.PrefixStore(meeting, store)
    everyone = [said, *(json.loads(read[rank])[1] for rank in others)]
    part.set("everyone", json.dumps(everyone))
    store.set("present in", meeting)
    return part, everyone


def _follow(
    store: dist.Store, rank: int, own: str, said: Said, patience: _Patience, late: str
) -> tuple[dist.Store, list[Said]]:
    store.set(f"word of {rank}", json.dumps([own, said]))
    present_in = ""
    while True:
        meeting, of_whom = json.loads(patience.get(store, f"answer to {rank}", late))
        if of_whom == own:
            if meeting != present_in:
                store.add(f"{meeting}/present", 1)
                present_in = meeting
            if patience.get(store, "present in", late).decode() == meeting:
                break
        patience.nap(late)
    part = dist.PrefixStore(meeting, store)
    return part, json.loads(patience.get(part, "everyone", late))
