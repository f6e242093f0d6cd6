"""What a worker does for a bucket of gradients: one class for each way to exchange them.

Each has `start`, called when a bucket's gradient is complete, which does not block, and `finish`,
after which the bucket's parameters have made their step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gradred import schedules
from gradred.calls.functions import iallreduce
from gradred.comm import Comm
from gradred.compression import Bytes, Compressor, Floats
from gradred.errors import UsageError
from gradred.named import NamedOperations
from gradred.schemes.exchange import Exchange, Key, Stage
from gradred.schemes.layout import Bucket, Layout
from gradred.schemes.store import Sgd, mean_of
from gradred.schemes.table import Options


@dataclass(frozen=True)
class Member:
    """What a worker has: its place among the ranks, its parameters, and how it reaches others."""

    comm: Comm
    operations: NamedOperations
    """Named operations of all ranks of `comm`."""
    exchange: Exchange | None
    """The worker's exchange of messages. None: the strategy needs no messages."""
    rank: int
    workers: Sequence[int]
    servers: Sequence[int]
    layout: Layout
    compressor: Compressor
    rule: Sgd
    weights: Floats
    gradient: Floats
    velocity: Floats
    options: Options

    @property
    def messages(self) -> Exchange:
        """The exchange of a strategy that needs one."""
        return cast("Exchange", self.exchange)

    @property
    def others(self) -> list[int]:
        """The other workers."""
        return [worker for worker in self.workers if worker != self.rank]

    def step(self, where: slice, gradient: Floats) -> None:
        """Let the rule change some parameters of this worker."""
        self.rule.update(self.weights[where], gradient, self.velocity[where])

    def received(self, source: int, key: Key, count: int) -> Floats:
        """The compressed values that a rank puts under a name. Blocks."""
        return self.compressor.decode(self.messages.get(source, key).payload, count)


class Strategy:
    """One way to exchange gradients."""

    version = 0
    """The number of gradients that the parameters contain, of a parameter server."""
    starts_in_order = False
    """Whether buckets must start in the same order on all workers."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.given_bytes = 0
        """What this worker has given to the exchange so far, after compression."""

    def encoded(self, key: int, values: Floats) -> Bytes:
        """Compress values and count the bytes."""
        payload = self.member.compressor.encode(key, values)
        self.given_bytes += payload.size
        return payload

    def start(self, number: int, bucket: Bucket, clock: int, priority: int) -> None:
        """Begin with a bucket whose gradient is complete. Does not block."""
        raise NotImplementedError

    def finish(self, number: int, bucket: Bucket, clock: int) -> None:
        """Block until the bucket's parameters have made their step."""
        raise NotImplementedError

    def end_step(self, clock: int) -> bool:
        """Do what follows the last bucket of a step; return whether it changed parameters."""
        return False

    def end(self) -> None:
        """Do what follows the last step of this worker."""


class ByServers(Strategy):
    """Gradients are put to servers, which answer with parameters."""

    def start(self, number: int, bucket: Bucket, clock: int, priority: int) -> None:
        """Put each piece to its server."""
        member = self.member
        for index in bucket.pieces:
            piece = member.layout.pieces[index]
            values = member.gradient[piece.where].reshape(piece.shape)
            payload = self.encoded(index, values)
            to = member.servers[piece.server]
            member.messages.put([to], Key(Stage.GRADIENT, index, clock), payload)

    def finish(self, number: int, bucket: Bucket, clock: int) -> None:
        """Get the parameters of each piece."""
        for index in bucket.pieces:
            self._get(index, Key(Stage.VALUE, index, clock))

    def end(self) -> None:
        """Get the final parameters, once all workers are done."""
        member = self.member
        last = {piece.server: index for index, piece in enumerate(member.layout.pieces)}
        nothing = np.empty(0, np.uint8)
        member.messages.put(member.servers, Key(Stage.DONE), nothing)
        for index, piece in enumerate(member.layout.pieces):
            to, key = member.servers[piece.server], Key(Stage.FINAL, index)
            member.messages.put([to], key, nothing, int(last[piece.server] == index))
        for index in range(len(member.layout.pieces)):
            self._get(index, Key(Stage.FINAL, index))

    def _get(self, index: int, key: Key) -> None:
        member = self.member
        piece = member.layout.pieces[index]
        message = member.messages.get(member.servers[piece.server], key)
        member.weights[piece.where] = message.payload.view(np.float32)
        self.version = message.number


class ByAllreduce(Strategy):
    """gradred averages gradients: as named operations, or by one plan for all."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self._in_flight: dict[int, Any] = {}
        # Non-blocking operations without names meet in the order of their calls.
        self.starts_in_order = bool(member.options.plan)

    def start(self, number: int, bucket: Bucket, clock: int, priority: int) -> None:
        """Start the operation of a bucket; with compression the gathering of what ranks send."""
        member = self.member
        values = member.gradient[bucket.where]
        if member.compressor.text == "none":
            self.given_bytes += values.nbytes
        if member.options.plan:
            self._in_flight[number] = iallreduce(
                values, "avg", out=values, comm=member.comm, plan=member.options.plan
            )
        elif member.compressor.text == "none":
            self._in_flight[number] = _average(member.operations, f"{number}", values, priority)
        elif not member.compressor.codec.averages:
            payload = self.encoded(number, _shaped(member.layout, bucket, values))
            self._in_flight[number] = _gather(member.operations, f"{number}", payload, priority)

    def finish(self, number: int, bucket: Bucket, clock: int) -> None:
        """Wait for the operation of the bucket, and make the step."""
        member = self.member
        values = member.gradient[bucket.where]
        if member.compressor.codec.averages:
            self._average_factors(number, bucket, values)
        elif member.compressor.text == "none":
            self._in_flight.pop(number).wait()
        else:
            request = self._in_flight.pop(number)
            request.wait()
            payloads = np.split(request.outputs[0], len(member.workers))
            decoded = [member.compressor.decode(one, values.size) for one in payloads]
            values[:] = mean_of(decoded)
        member.step(bucket.where, values)

    def _average_factors(self, number: int, bucket: Bucket, values: Floats) -> None:
        """Compress with averages over the ranks, so that the result needs no other exchange."""
        member = self.member

        def mean(array: Floats) -> Floats:
            averaged = np.ascontiguousarray(array)
            self.given_bytes += averaged.nbytes
            _average(member.operations, f"{number}", averaged, 0).wait()
            return averaged

        shaped = _shaped(member.layout, bucket, values)
        values[:] = member.compressor.decode(
            member.compressor.encode(number, shaped, mean), values.size
        )


def _average(operations: NamedOperations, name: str, values: Floats, priority: int) -> Any:
    address = values.ctypes.data
    described = [(address, address, "float32", values.shape)]
    return operations.submit("allreduce", name, described, op="avg", held=values, priority=priority)


def _gather(operations: NamedOperations, name: str, payload: Bytes, priority: int) -> Any:
    described = [(payload.ctypes.data, 0, "uint8", payload.shape)]
    return operations.submit(
        "allgather", f"gather {name}", described, held=payload, priority=priority
    )


def _shaped(layout: Layout, bucket: Bucket, values: Floats) -> Floats:
    """The values of a bucket in the shape of its tensor, if it has only one."""
    if len(bucket.tensors) > 1:
        return values
    return values.reshape(layout.shapes[bucket.tensors.start])


class BySchedule(Strategy):
    """A schedule of gradred averages gradients, run step by step over the transport."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        place = list(member.workers).index(member.rank)
        self._schedule = schedules.make(member.options.plan or "ring", place, len(member.workers))

    def start(self, number: int, bucket: Bucket, clock: int, priority: int) -> None:
        """Do nothing: `finish` runs all rounds, each of which waits for the one before."""

    def finish(self, number: int, bucket: Bucket, clock: int) -> None:
        """Run all rounds, and make the step."""
        member = self.member
        values = member.gradient[bucket.where]
        self.given_bytes += values.nbytes
        self._run(values, bucket.start, clock)
        values /= np.float32(len(member.workers))
        member.step(bucket.where, values)

    def _run(self, work: Floats, piece: int, clock: int) -> None:
        schedule, messages, workers = self._schedule, self.member.messages, self.member.workers
        ends = [-(-work.size * chunk // schedule.chunks) for chunk in range(schedule.chunks + 1)]
        slots = np.empty((max(1, schedule.scratch_slots), work.size), np.float32)

        def place(span: schedules.Span | None) -> Floats:
            assert span is not None
            buffer = work if span.buffer == "work" else slots[span.slot]
            return buffer[ends[span.first] : ends[span.first + span.chunks]]

        for number, steps in enumerate(schedule.rounds):
            key = Key(Stage.ROUND, piece, clock, number)
            for step in steps:
                if step.kind == "send":
                    assert step.peer is not None
                    messages.put([workers[step.peer]], key, place(step.source).view(np.uint8))
            for step in steps:
                if step.kind == "recv":
                    assert step.peer is not None
                    message = messages.get(workers[step.peer], key)
                    place(step.target)[:] = message.payload.view(np.float32)
            for step in steps:
                if step.kind == "reduce":
                    place(step.target)[:] += place(step.source)
                elif step.kind == "copy":
                    place(step.target)[:] = place(step.source)


class ByMesh(Strategy):
    """Every worker sends its gradient to every other one."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self._own: dict[int, Floats] = {}

    def start(self, number: int, bucket: Bucket, clock: int, priority: int) -> None:
        """Put the gradient to all other workers."""
        member = self.member
        values = member.gradient[bucket.where]
        payload = self.encoded(number, _shaped(member.layout, bucket, values))
        self._own[number] = member.compressor.decode(payload, values.size)
        member.messages.put(member.others, Key(Stage.ALL, number, clock), payload)

    def finish(self, number: int, bucket: Bucket, clock: int) -> None:
        """Get the gradients of all other workers, and make the step."""
        member, key = self.member, Key(Stage.ALL, number, clock)
        count = bucket.stop - bucket.start
        found = [
            self._own.pop(number) if worker == member.rank else member.received(worker, key, count)
            for worker in member.workers
        ]
        member.step(bucket.where, mean_of(found))


class ByLevels(Strategy):
    """Gradients go to the leader of a group, from leader to leader, and back."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        parts = np.array_split(
            np.array(member.workers), min(member.options.groups, len(member.workers))
        )
        groups = [list(map(int, part)) for part in parts]
        self._group = next(group for group in groups if member.rank in group)
        self._leaders = [group[0] for group in groups]
        self._own: dict[int, Floats] = {}

    def start(self, number: int, bucket: Bucket, clock: int, priority: int) -> None:
        """Put the gradient to the leader."""
        member, leader = self.member, self._group[0]
        values = member.gradient[bucket.where]
        payload = self.encoded(number, _shaped(member.layout, bucket, values))
        if member.rank == leader:
            self._own[number] = member.compressor.decode(payload, values.size)
        else:
            member.messages.put([leader], Key(Stage.UP, number, clock), payload)

    def finish(self, number: int, bucket: Bucket, clock: int) -> None:
        """Get the mean from the leader, or make it as the leader; then make the step."""
        member, messages = self.member, self.member.messages
        leader, *followers = self._group
        down = Key(Stage.DOWN, number, clock)
        if member.rank != leader:
            mean = messages.get(leader, down).payload.view(np.float32)
        else:
            mean = self._mean(number, bucket, clock)
            messages.put(followers, down, mean.view(np.uint8))
        member.step(bucket.where, mean)

    def _mean(self, number: int, bucket: Bucket, clock: int) -> Floats:
        member, messages = self.member, self.member.messages
        up, across = Key(Stage.UP, number, clock), Key(Stage.ACROSS, number, clock)
        count = bucket.stop - bucket.start
        total = self._own.pop(number).copy()
        for follower in self._group[1:]:
            total += member.received(follower, up, count)
        leaders = [one for one in self._leaders if one != member.rank]
        messages.put(leaders, across, total.view(np.uint8))
        totals = [
            total if one == member.rank else messages.get(one, across).payload.view(np.float32)
            for one in self._leaders
        ]
        mean = mean_of(totals)
        mean *= np.float32(len(self._leaders) / len(member.workers))
        return mean


class Locally(Strategy):
    """Workers make steps by themselves, and average parameters now and then, in groups.

    After every `every` steps each worker averages with those of its group. The groups have
    `groups` members and are drawn anew each time, the same on all workers (as in Li et al., 2020,
    whose groups follow a butterfly). After the last step all workers average.
    """

    def start(self, number: int, bucket: Bucket, clock: int, priority: int) -> None:
        """Do nothing: gradients are not exchanged."""

    def finish(self, number: int, bucket: Bucket, clock: int) -> None:
        """Make the step with this worker's own gradient."""
        self.member.step(bucket.where, self.member.gradient[bucket.where])

    def end_step(self, clock: int) -> bool:
        """Average in the group of this step."""
        averages = (clock + 1) % self.member.options.every == 0
        if averages:
            self._average(self._group(clock), clock)
        return averages

    def end(self) -> None:
        """Average over all workers."""
        self._average(self.member.workers, -1)

    def _group(self, clock: int) -> list[int]:
        workers, members = self.member.workers, max(1, self.member.options.groups)
        order = np.random.default_rng(clock).permutation(np.array(workers))
        parts = np.array_split(order, math.ceil(len(workers) / members))
        return next(sorted(map(int, part)) for part in parts if self.member.rank in part)

    def _average(self, group: Sequence[int], clock: int) -> None:
        member, key = self.member, Key(Stage.WEIGHTS, 0, clock)
        others = [one for one in group if one != member.rank]
        self.given_bytes += member.weights.nbytes
        member.messages.put(others, key, member.weights.view(np.uint8))
        member.weights[:] = mean_of(
            [member.weights if one == member.rank else self._weights_of(one, key) for one in group]
        )

    def _weights_of(self, worker: int, key: Key) -> Floats:
        """What a worker has put for this average; its messages come in the order of its steps."""
        message = self.member.messages.next(worker, key)
        if message.key != key:
            where = {
                one: "its end" if one.clock < 0 else f"step {one.clock}"
                for one in (key, message.key)
            }
            found = f"worker {worker} is at {where[message.key]}, and this one at {where[key]}"
            remedy = "Make the same number of steps on all workers"
            raise UsageError("an average of parameters", found, remedy)
        return message.payload.view(np.float32)


STRATEGIES: dict[str, type[Strategy]] = {
    "servers": ByServers,
    "allreduce": ByAllreduce,
    "schedule": BySchedule,
    "mesh": ByMesh,
    "levels": ByLevels,
    "oneself": Locally,
}
"""What workers do, by the names that the table of schemes has."""
