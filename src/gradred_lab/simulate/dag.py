"""An iteration of synchronous training as a graph of tasks, run in simulated time.

Tasks: load a batch, bring it to the device, forward and backward of each tensor, a message for each
group of gradients, update. A task starts when the tasks that it needs have ended and its resource
is free: the loader, the bus, the device, the network. Several iterations are run, until each takes
as long as the one before; so a loader that is ahead, or a message that goes on during the next
forward, counts as it would in a long training.

Source of the model: Shi, Wang and Chu, "Modeling and evaluation of synchronous stochastic gradient
descent in distributed deep learning on multiple GPUs", 2018 (arXiv 1805.03812).
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from gradred_lab.simulate.work import Work

_ITERATIONS = 4  # are run; the last one is steady
_AHEAD = 2  # batches that the loader may have ready


@dataclass(frozen=True)
class Message:
    """Gradients that are exchanged together: `first` to `last` in the order of backward.

    If the gradients have several types, only those of one of them. A piece of a tensor has the same
    first and last. Of messages that are ready the one with the least `turn` goes first.
    """

    first: int
    last: int
    nbytes: float
    turn: float


@dataclass(frozen=True)
class Rules:
    """When messages may go, and what waits for them.

    `after_backward`: none goes before the end of backward. `into_forward`: forward of a tensor
    waits for that tensor alone, else for all. `copies`: how often a byte of a message of several
    gradients is copied by the device.
    """

    after_backward: bool = False
    into_forward: bool = False
    copies: float = 0.0


@dataclass(frozen=True)
class Phases:
    """Where the seconds of a steady iteration go. They add up to `iteration`.

    `late` is what a device waits for the slowest one.

    `exchange` is how long the network is busy, at the same time as the device or not; it is no part
    of the sum. `exposed` is what of it the device waits for.
    """

    load: float
    copy_in: float
    forward: float
    backward: float
    packing: float
    exposed: float
    update: float
    exchange: float
    latency: float
    late: float

    @property
    def iteration(self) -> float:
        """Seconds of an iteration."""
        parts = (self.load, self.copy_in, self.forward, self.backward, self.packing)
        return sum(parts) + self.exposed + self.update + self.late

    def limit(self, alone: float, fetched: float = 0.0) -> str:
        """What takes most of the seconds beyond those of a device alone, which fetches so long."""
        lost = {
            "input": self.load + self.copy_in - fetched,
            "latency of messages": min(self.exposed, self.latency),
            "speed of the network": self.exposed - min(self.exposed, self.latency),
            "copies of gradients": self.packing,
            "late devices": self.late,
        }
        worst = max(lost, key=lambda name: lost[name])
        return worst if lost[worst] > 0.02 * alone else "the device"


def run(
    work: Work, messages: Sequence[Message], rules: Rules, cost: Callable[[float], float]
) -> Phases:
    """Run the graph until it is steady; the phases of the last iteration.

    Args:
        work: of one device; all devices do the same at the same time.
        messages: each gradient is in at least one. None goes before those that are listed earlier
            are ready.
        rules: when messages go.
        cost: seconds of a message by its bytes.
    """
    one = _Run(work, messages, rules, [cost(message.nbytes) for message in messages])
    for _ in range(_ITERATIONS):
        phases = one.iteration()
    return dataclasses.replace(phases, latency=cost(1.0) * len(messages))


class _Run:
    """The times at which resources are free, in seconds since the start."""

    def __init__(
        self, work: Work, messages: Sequence[Message], rules: Rules, costs: Sequence[float]
    ) -> None:
        self._work, self._messages, self._rules, self._costs = work, messages, rules, costs
        packed = sum(one.nbytes for one in messages if one.last > one.first)
        self._packing = rules.copies * work.packing * packed
        self._device = self._network = self._loaded = self._bus = 0.0
        self._begun: list[float] = []
        self._fresh = [0.0] * len(work.nbytes)  # when each tensor is up to date

    def iteration(self) -> Phases:
        load, copy_in = self._bring()
        exposed = self._forward()
        ready = self._backward()
        ends = self._send(ready)
        if self._rules.into_forward:
            self._fresh = self._tensors(ends)
        else:
            after = max(0.0, max(ends, default=0.0) - self._device)
            self._device += after
            exposed += after
        slower = (1 - self._work.overlap) * max(0.0, sum(self._costs) - exposed)
        self._device += slower
        exposed += slower
        self._device += self._work.update + self._work.late
        return Phases(
            load=load,
            copy_in=copy_in,
            forward=float(self._work.forward.sum()),
            backward=float(self._work.backward.sum()),
            packing=self._packing,
            exposed=exposed,
            update=self._work.update,
            exchange=sum(self._costs),
            latency=0.0,
            late=self._work.late,
        )

    def _bring(self) -> tuple[float, float]:
        """Wait for a batch: how long for the loader, and how long for the bus."""
        begin = self._device
        if len(self._begun) >= _AHEAD:
            self._loaded = max(self._loaded, self._begun[-_AHEAD])
        self._loaded += self._work.load
        self._bus = max(self._bus, self._loaded) + self._work.copy_in
        self._device = max(begin, self._bus)
        load = min(max(0.0, self._loaded - begin), self._device - begin)
        copy_in = self._device - begin - load
        self._device += self._work.fetch
        self._begun.append(self._device)
        return load + self._work.fetch, copy_in

    def _forward(self) -> float:
        """Forward, the tensors of which are ready last in backward first; how long it waited."""
        waited = 0.0
        for tensor in reversed(range(len(self._fresh))):
            wait = max(0.0, self._fresh[tensor] - self._device)
            waited += wait
            self._device += wait + float(self._work.forward[tensor])
        return waited

    def _backward(self) -> list[float]:
        """Backward and packing; when each gradient is ready for a message."""
        ready = [float(at) for at in self._device + np.cumsum(self._work.backward)]
        self._device = ready[-1] + self._packing
        return [self._device] * len(ready) if self._rules.after_backward else ready

    def _send(self, ready: Sequence[float]) -> list[float]:
        """One message at a time, of those that are ready that with the least turn; their ends."""
        when = list(accumulate((ready[one.last] for one in self._messages), max))
        arrive = sorted(range(len(when)), key=lambda i: when[i])
        ends, at = [0.0] * len(arrive), 0
        waiting: list[tuple[float, int]] = []
        while at < len(arrive) or waiting:
            if not waiting:
                self._network = max(self._network, when[arrive[at]])
            while at < len(arrive) and when[arrive[at]] <= self._network:
                heapq.heappush(waiting, (self._messages[arrive[at]].turn, arrive[at]))
                at += 1
            _, number = heapq.heappop(waiting)
            self._network += self._costs[number]
            ends[number] = self._network
        return ends

    def _tensors(self, ends: Sequence[float]) -> list[float]:
        """When each tensor has got all messages that it is in."""
        fresh = [0.0] * len(self._fresh)
        for message, end in zip(self._messages, ends, strict=True):
            for tensor in range(message.first, message.last + 1):
                fresh[tensor] = max(fresh[tensor], end)
        return fresh
