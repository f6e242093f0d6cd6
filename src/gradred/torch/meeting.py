"""How the members of a group meet in torch's store, whatever else is in there.

The store may hold keys of groups of the same name that are gone: of this process, or of workers
that torchrun has replaced, as often as the agents of several hosts say, each with a count of its
own. So a key counts only if it bears a word that somebody of this meeting has drawn just now:

    other ranks  draw a word, and write it with what they have to say
    rank 0       reads what all have written, draws a word for the meeting, and answers each with
                 that word and the rank's own
    other ranks  count themselves as present under the word of the meeting, if the answer has their
                 own; else the answer, or what rank 0 has read, is of another meeting, and they wait
    rank 0       once all are present: writes what all have said; else, if a rank has written
                 something new meanwhile, begins anew
"""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from gradred._util import clock
from gradred.errors import TimeoutError, explain  # noqa: A004

_FIRST_NAP, _LONGEST_NAP = 0.0005, 0.05  # seconds

Said = Any
"""What JSON can express."""


def meet(
    store: dist.Store,
    rank: int,
    ranks: Sequence[int],
    said: Said,
    timeout: datetime.timedelta,
) -> tuple[dist.Store, list[Said]]:
    """A part of the store that nobody else uses, and what each rank has said, by rank.

    Blocking and collective: each rank calls it once, and then something that needs all ranks.

    Args:
        store: that all of them reach.
        rank: this one.
        ranks: what errors call all of them, by rank.
        said: by this rank.
        timeout: until all have come.

    Raises:
        gradred.TimeoutError: a rank did not come in time. What the store raises comes out, too.
    """
    own = _word()
    if len(ranks) == 1:
        return dist.PrefixStore(own, store), [said]
    patience = _Patience(timeout.total_seconds())
    if rank != 0:
        late = f"rank {ranks[0]} has not come, or waits for others,"
        return _follow(store, rank, own, said, lambda: patience.nap(late))
    return _lead(store, len(ranks), own, said, patience)


def _word() -> str:
    return os.urandom(8).hex()


class _Patience:
    """Naps between looks, longer and longer ones, until a limit."""

    def __init__(self, limit: float) -> None:
        self._limit, self._begin = limit, clock.now()
        self._nap = _FIRST_NAP

    def nap(self, missing: str) -> None:
        if clock.now() - self._begin > self._limit:
            remedy = "See what the other ranks do, or pass a longer timeout"
            found = f"{missing} within {self._limit:g} s"
            raise TimeoutError(explain("a process group of gradred", found, remedy))
        time.sleep(clock.nap(self._nap))
        self._nap = min(2 * self._nap, _LONGEST_NAP)


def _lead(
    store: dist.Store, size: int, own: str, said: Said, patience: _Patience
) -> tuple[dist.Store, list[Said]]:
    others = range(1, size)
    read: dict[int, bytes] = {}
    meeting = own
    while True:
        now = {rank: store.get(f"word of {rank}") for rank in others}  # waits until there is one
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
    store: dist.Store, rank: int, own: str, said: Said, nap: Callable[[], None]
) -> tuple[dist.Store, list[Said]]:
    store.set(f"word of {rank}", json.dumps([own, said]))
    present_in = ""
    while True:
        meeting, of_whom = json.loads(store.get(f"answer to {rank}"))  # waits until there is one
        if of_whom == own:
            if meeting != present_in:
                store.add(f"{meeting}/present", 1)
                present_in = meeting
            if store.get("present in").decode() == meeting:
                break
        nap()
    part = dist.PrefixStore(meeting, store)
    return part, json.loads(part.get("everyone"))
