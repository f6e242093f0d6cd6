"""The table of schemes of training: which gradients share a message, and when it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradred.errors import UsageError
from gradred_lab.simulate import grouping
from gradred_lab.simulate.dag import Message, Phases, Rules, run
from gradred_lab.simulate.exchange import Exchange, Way
from gradred_lab.simulate.work import Work

_BUCKET, _FIRST = 25 << 20, 1 << 20  # bytes of a bucket of DistributedDataParallel

Grouping = Callable[[Work, Exchange], list[Message]]


@dataclass(frozen=True)
class Scheme:
    """How gradients travel, and the source of it."""

    about: str
    source: str
    group: Grouping
    rules: Rules = field(default_factory=Rules)
    way: Way = field(default_factory=Way)


def each(work: Work, _exchange: Exchange) -> list[Message]:
    """A message for each gradient."""
    return _messages(work, [[i] for i in range(len(work.nbytes))])


def once(work: Work, _exchange: Exchange) -> list[Message]:
    """One message of all gradients of a type."""
    return _messages(work, sorted(work.of_each_type(), key=_last))


def merged(work: Work, exchange: Exchange) -> list[Message]:
    """MG-WFBP: a gradient waits for the next one if that comes before a message would pay."""
    ready = np.cumsum(work.backward)
    found = []
    for own in work.of_each_type():
        lasts = grouping.merged(work.nbytes[own], ready[own], exchange.latency, exchange)
        found += _runs(own, lasts)
    return _messages(work, sorted(found, key=_last))


def buckets(nbytes: float, first: float | None = None) -> Grouping:
    """Messages of at least so many bytes, and one of the rest; the first may be another length.

    They are of one type, and each type has a first one. Those of the rest go last, as in
    `compute_bucket_assignment_by_size` of DistributedDataParallel.
    """

    def group(work: Work, _exchange: Exchange) -> list[Message]:
        full: list[list[int]] = []
        rest: list[list[int]] = []
        for own in work.of_each_type():
            parts = _runs(own, grouping.buckets(work.nbytes[own], nbytes, first))
            for number, part in enumerate(parts):
                wanted = nbytes if number or first is None else first
                (full if work.nbytes[part].sum() >= wanted else rest).append(part)
        return _messages(work, sorted(full, key=_last) + sorted(rest, key=_last))

    return group


def pieces(work: Work, _exchange: Exchange) -> list[Message]:
    """ByteScheduler: pieces of each gradient; those that forward needs first go first."""
    found = []
    for i, nbytes in enumerate(work.nbytes):
        count = max(1, int(np.ceil(nbytes / grouping.PIECE)))
        found += [Message(i, i, float(nbytes) / count, -i)] * count
    return found


def _runs(gradients: Sequence[int], lasts: Iterable[int]) -> list[list[int]]:
    """Cut gradients behind each of the places `lasts`."""
    found, first = [], 0
    for last in lasts:
        found.append(list(gradients[first : last + 1]))
        first = last + 1
    return found


def _messages(work: Work, groups: Sequence[Sequence[int]]) -> list[Message]:
    return [
        Message(own[0], own[-1], float(work.nbytes[list(own)].sum()), turn)
        for turn, own in enumerate(groups)
    ]


def _last(gradients: Sequence[int]) -> int:
    return gradients[-1]


_PACKED = Rules(copies=2.0)
_AFTER = Rules(after_backward=True)

SCHEMES: dict[str, Scheme] = {
    "none": Scheme("a message for each gradient, all after backward", "CNTK 2.3", each, _AFTER),
    "bsp": Scheme(
        "one message of all gradients after backward",
        "Horovod with a large fusion buffer",
        once,
        Rules(after_backward=True, copies=2.0),
    ),
    "contiguous": Scheme(
        "the same of gradients that are contiguous: they are not copied",
        "an implementation of Caffe on Sunway TaihuLight",
        once,
        _AFTER,
    ),
    "wfbp": Scheme(
        "a message for each gradient as soon as it is ready", "Zhang et al., Poseidon, 2017", each
    ),
    "mgwfbp": Scheme(
        "gradients that wait cheaper than a message costs are merged",
        "Shi et al., MG-WFBP, INFOCOM 2019",
        merged,
        _PACKED,
    ),
    "buckets": Scheme(
        "buckets of 25 MiB during backward, the first of 1 MiB",
        "Li et al., PyTorch Distributed, VLDB 2020",
        buckets(_BUCKET, _FIRST),
        _PACKED,
    ),
    "priority": Scheme(
        "pieces of 4 MiB, those that forward needs first go first, also during forward",
        "Peng et al., ByteScheduler, SOSP 2019",
        pieces,
        Rules(into_forward=True),
    ),
    "ps": Scheme(
        "a parameter server on one rank; a message for each gradient as soon as it is ready",
        "Li et al., OSDI 2014",
        each,
        way=Way(servers=1),
    ),
    "ps-once": Scheme(
        "a parameter server on one rank; one message of all gradients after backward",
        "Li et al., OSDI 2014",
        once,
        Rules(after_backward=True, copies=2.0),
        Way(servers=1),
    ),
    "ps-many": Scheme(
        "parameter servers on up to eight ranks, each with a part of every gradient",
        "Li et al., OSDI 2014",
        each,
        way=Way(servers=8),
    ),
    "ps-grpc": Scheme(
        "a parameter server on one rank over gRPC; a message for each gradient",
        "TensorFlow 1",
        each,
        way=Way(servers=1, grpc=True),
    ),
}


def find(name: str) -> Scheme:
    """The scheme of this name; raises UsageError, which lists them."""
    if name in SCHEMES:
        return SCHEMES[name]
    found = f"there is no such scheme. There are: {', '.join(SCHEMES)}"
    raise UsageError(f"--scheme {name}", found, "Name some of these")


def iterate(name: str, work: Work, exchange: Exchange) -> Phases:
    """The phases of an iteration under a scheme."""
    scheme = find(name)
    return run(work, scheme.group(work, exchange), scheme.rules, exchange)


BUCKETS = tuple(float(1 << power) for power in range(16, 31))
"""Lengths of buckets, of which the best one is looked for: bytes."""


def best_bucket(work: Work, exchange: Exchange) -> tuple[float, float]:
    """The length of buckets with which an iteration is shortest, and its seconds."""
    times = [
        (run(work, buckets(size)(work, exchange), _PACKED, exchange).iteration, size)
        for size in BUCKETS
    ]
    seconds, size = min(times)
    return size, seconds
