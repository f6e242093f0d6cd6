"""Jobs in the form in which NCCL's RAS shows communicators (`ncclras -f json`), for its readers.

A job's ranks stand for a communicator: a rank has one status, whatever communicators it has.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gradred.observe.status import METRICS, Rank, published

_NAMES = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "bcast": "Broadcast",
    "reduce": "Reduce",
    "reduce_scatter_block": "ReduceScatter",
}
"""NCCL's names of the kinds that it has, too."""


def report(found: Sequence[Rank]) -> dict[str, Any]:
    """Return the jobs of these ranks; a rank without a launcher is a job of its own."""
    jobs: dict[tuple[int, int], list[Rank]] = {}
    for one in found:
        jobs.setdefault((one.job, 0 if one.job else one.pid), []).append(one)
    communicators = [_communicator(members) for members in jobs.values()]
    now = datetime.datetime.now().astimezone()
    return {
        "timestamp": now.isoformat(" ", "seconds"),
        "communicators_count": len(communicators),
        "communicators": communicators,
    }


def _communicator(members: Sequence[Rank]) -> dict[str, Any]:
    first = members[0]
    unseen = sorted(set(range(first.size)) - {one.rank for one in members})
    return {
        "hash": f"{first.job or first.pid:#018x}",
        "size": first.size,
        "ranks_count": len(members),
        "missing_ranks_count": len(unseen),
        "ranks": [_rank(one) for one in members],
        "missing_ranks": [{"rank": rank} for rank in unseen],
    }


def _rank(one: Rank) -> dict[str, Any]:
    return {
        "rank": one.rank,
        "host": platform.node(),
        "pid": one.pid,
        "status": {"finalize_called": one.main_thread_ended},
        "collective_counts": _counts(one.pid),
    }


def _counts(pid: int) -> dict[str, int] | None:
    """Operations that ended well, by kind; None where the rank publishes no metrics by a port."""
    counts: Counter[str] = Counter()
    for content in filter(None, published(METRICS, pid)):
        for family, labels, value in json.loads(content):
            if family == "gradred_operations":
                kind = str(dict(labels)["kind"])
                counts[_NAMES.get(kind, kind)] += int(value)
    return dict(counts) if counts else None
