"""Random mixed use: every kind of call beside every other, on communicators that come and go.

All ranks draw the same program from a seed, so it is legal MPI; what MPI leaves to a rank (when and
how it waits, how it sends and receives, what it computes meanwhile) each draws for itself. Results
are exact, and the memory around each buffer is looked at, too.

    mpiexec -n 3 python tests/mpi/random_use.py --seed 7
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import faulthandler
import gc
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

import forms
from mpi.exact import DTYPES, FACTOR, Array, differences, make_input, numpy_dtype, ops_of, reduced

import gradred
from gradred import UsageError, _core, config, schedules

MOST_COMMS = 7
MOST_IN_FLIGHT = 20
MOST_BYTES = 2 << 20
GUARD_BYTES = 64
GUARD, EMPTY = 0xA5, 0x5A

# Bytes around which gradred takes another data path.
EDGES = (48, 56, 64, 512, 4096, 8 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20)
PLANS = ("mpi", *schedules.names("allreduce"))
FORMED = "?bhilBHILfdFD"  # letters of the types that all forms of buffers can have
MPI_DTYPES = ("int8", "int32", "int64", "uint16", "float32", "float64", "complex128")


@dataclasses.dataclass(frozen=True)
class Step:
    """One action of all ranks of a communicator; each kind uses the fields that it needs."""

    number: int
    kind: str
    comm: int
    dtype: str = "float64"
    op: str = "sum"
    count: int = 0
    in_place: bool = False
    plan: str | None = None
    root: int = 0
    peer: int = 1
    """The distance from `root` to the rank."""
    later: int = 0
    """The step at which a message is received; for a persistent call its number."""
    flag: bool = False
    made: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """New communicators: numbers, and members by their ranks in the world."""
    parts: tuple[Step, ...] = ()
    """The steps of the threads."""

    def __str__(self) -> str:
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)[2:]}
        arguments = [
            f"{name}={value}"
            for name, value in fields.items()
            if value or name in ("comm", "count", "root")
        ]
        return f"step {self.number} {self.kind}({', '.join(arguments)})"


# ---- buffers --------------------------------------------------------------------------------


class Guarded:
    """An array in the middle of memory that must not be written."""

    def __init__(self, content: Array) -> None:
        self._memory = np.full(content.nbytes + 2 * GUARD_BYTES, GUARD, np.uint8)
        self.array: Array = self._memory[GUARD_BYTES : GUARD_BYTES + content.nbytes].view(
            content.dtype
        )
        self.array[:] = content

    @classmethod
    def empty(cls, count: int, dtype: str) -> Guarded:
        size = numpy_dtype(dtype).itemsize
        return cls(np.full(count * size, EMPTY, np.uint8).view(numpy_dtype(dtype)))

    def problems(self, expected: Array, title: str) -> list[str]:
        found = differences(self.array[: expected.size], expected, title)
        around = (self._memory[:GUARD_BYTES], self._memory[-GUARD_BYTES:])
        for memory, where in zip(around, ("before", "behind"), strict=True):
            if (memory != GUARD).any():
                found.append(f"{title}: the memory {where} the buffer was written to")
        return found


@dataclasses.dataclass
class Buffers:
    """The buffers of one call, and the check of its result."""

    send: Any
    recv: Array
    check: Callable[[str], list[str]]


def salted(step: Step, turn: int) -> int:
    """The offset of this call in the endless vectors, so that each call has other values."""
    return (step.number * 13 + turn * 5) % 97


def contribution(step: Step, rank: int, count: int, turn: int = 0) -> Array:
    salt = salted(step, turn)
    return make_input(rank, count + salt, step.dtype, step.op)[salt:]


def result(step: Step, size: int, count: int, turn: int = 0) -> Array:
    salt = salted(step, turn)
    return reduced(size, count + salt, step.dtype, step.op)[salt:]


def buffers(step: Step, mine: Array, expected: Array) -> Buffers:
    """Two guarded buffers, or one that holds the input first if the call is in place."""
    if step.in_place:
        both = Guarded(mine)
        return Buffers(MPI.IN_PLACE, both.array, lambda title: both.problems(expected, title))
    send, recv = Guarded(mine), Guarded.empty(expected.size, step.dtype)
    return Buffers(
        send.array,
        recv.array,
        lambda title: recv.problems(expected, title) + send.problems(mine, f"{title}, its input"),
    )


def op_of(step: Step) -> Any:
    """The operation in one of its forms."""
    if step.op == "premul":
        return gradred.premul(FACTOR)
    return getattr(MPI, step.op.upper()) if step.flag and step.op != "avg" else step.op


def in_forms(rank: Rank, plain: Buffers, given: int = 1, got: int = 1) -> Buffers:
    """The same call in other forms of its buffers, which this rank draws.

    `given` and `got` are the numbers of blocks in its input and in its result.
    """
    in_place = plain.send is MPI.IN_PLACE
    x = plain.recv
    if x.size == 0 or x.dtype.char not in FORMED or rank.random.random() < 0.5:
        return plain
    recv = drawn_form(rank, plain.recv, max(given, got) if in_place else got, writable=True)
    send = None
    if plain.send is not None and not in_place:
        send = drawn_form(rank, plain.send, given)

    def check(title: str) -> list[str]:
        plain.recv[:] = recv.elements
        if send is not None:
            plain.send[:] = send.elements
        return plain.check(title)

    return Buffers(plain.send if send is None else send.spec, recv.spec, check)


def drawn_form(rank: Rank, x: Array, blocks: int, writable: bool = False) -> forms.Buffer:
    fitting = [
        form for form in forms.FORMS.values() if form.takes(x) and (form.writable or not writable)
    ]
    return rank.random.choice(fitting).make(x, blocks)


# ---- a rank ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Flight:
    """Something started; `ready` is the step from which on a rank may wait for it."""

    request: Any
    title: str
    comm: int
    check: Callable[[str], list[str]]
    ready: int = 0
    refused: bool = False


class Rank:
    """The state of this rank."""

    def __init__(self, seed: str, world: gradred.Comm, verbose: bool = False) -> None:
        self.verbose = verbose
        self.random = random.Random(f"{seed}, rank {MPI.COMM_WORLD.rank}")
        self.comms: dict[int, gradred.Comm] = {0: world}
        self.in_flight: list[Flight] = []
        self.persistent: dict[int, tuple[Step, Any, Buffers, Guarded]] = {}
        self.messages: dict[int, Step] = {}
        self.finished: list[Any] = []  # requests that outlive their communicators
        self.dropped: list[tuple[str, Buffers]] = []  # of requests that the program has dropped
        self.problems: list[str] = []
        self.signals = 0

    def count_signal(self, number: int, frame: Any) -> None:
        """A signal handler that allocates, and may collect garbage."""
        self.signals += len([number, [frame]]) // 2

    def start(
        self, step: Step, request: Any, check: Callable[[str], list[str]], **more: Any
    ) -> None:
        self.in_flight.append(Flight(request, str(step), step.comm, check, **more))

    def look(self, step: Step, found: Buffers) -> None:
        self.problems += found.check(str(step))

    def wait_for(self, flights: Sequence[Flight]) -> None:
        """Wait in random order, by a random form of waiting."""
        flights = list(flights)
        self.random.shuffle(flights)
        plain = [flight for flight in flights if not flight.refused]
        requests = [flight.request for flight in plain]
        way = self.random.choice(list(WAITS))
        if self.verbose:
            for flight in plain:
                print(f"[{MPI.COMM_WORLD.rank}] {way}: {flight.title}", file=sys.stderr, flush=True)
        WAITS[way](requests)
        for flight in flights:
            if flight.refused:
                self.require_refused(flight.request.Wait, flight.title)
            self.problems += flight.check(flight.title)
            self.finished.append(flight.request)
        self.in_flight = [one for one in self.in_flight if one not in flights]
        del self.finished[:-5]

    def require_refused(self, call: Callable[[], Any], title: str) -> None:
        try:
            call()
        except UsageError:
            return
        self.problems.append(f"{title}: no UsageError")

    def go_on(self, number: int) -> None:
        """Between two steps: compute, pause, wait for some of what is in flight."""
        chance = self.random.random()
        if threading.current_thread() is threading.main_thread() and self.random.random() < 0.2:
            # A Python handler runs soon, inside a call of the steps that follow or between two.
            signal.setitimer(signal.ITIMER_REAL, self.random.choice((1e-5, 1e-3, 0.02)))
        if chance < 0.03:
            time.sleep(self.random.choice((0.001, 0.01, 0.12)))
        elif chance < 0.1:
            np.sort(np.random.default_rng(number).random(self.random.choice((1000, 100_000))))
        ready = [flight for flight in self.in_flight if flight.ready <= number]
        if len(ready) > MOST_IN_FLIGHT:
            self.wait_for(ready)
        elif ready and self.random.random() < 0.35:
            self.wait_for(self.random.sample(ready, self.random.randint(1, len(ready))))


def wait_each(requests: list[Any]) -> None:
    for request in requests:
        request.Wait()


def test_each(requests: list[Any]) -> None:
    waiting = list(requests)
    while waiting:
        waiting = [request for request in waiting if not request.Test()]
        time.sleep(0)


def each_once(complete: Callable[[list[Any]], list[int] | None]) -> Callable[[list[Any]], None]:
    """Complete until nothing is left; each index must come once."""

    def wait(requests: list[Any]) -> None:
        found: list[int] = []
        while (some := complete(requests)) is not None:
            found += some
            time.sleep(0)
        assert sorted(found) == list(range(len(requests))), (found, len(requests))

    return wait


def wait_any(requests: list[Any]) -> list[int] | None:
    index = MPI.Request.Waitany(requests)
    return None if index == MPI.UNDEFINED else [index]


def test_any(requests: list[Any]) -> list[int] | None:
    index, flag = MPI.Request.Testany(requests)
    if flag:
        return None if index == MPI.UNDEFINED else [index]
    return []


def test_all(requests: list[Any]) -> None:
    while not MPI.Request.Testall(requests):
        time.sleep(0)


WAITS: dict[str, Callable[[list[Any]], Any]] = {
    "each": wait_each,
    "test": test_each,
    "gradred's Waitall": gradred.Request.Waitall,
    "MPI's Waitall": MPI.Request.Waitall,
    "Waitany": each_once(wait_any),
    "Waitsome": each_once(MPI.Request.Waitsome),
    "Testany": each_once(test_any),
    "Testsome": each_once(MPI.Request.Testsome),
    "Testall": test_all,
}


# ---- the kinds of steps ---------------------------------------------------------------------


def reducing(step: Step, comm: gradred.Comm) -> Buffers:
    mine = contribution(step, comm.rank, step.count)
    return buffers(step, mine, result(step, comm.size, step.count))


def scattering(step: Step, comm: gradred.Comm) -> Buffers:
    whole = step.count * comm.size
    mine = contribution(step, comm.rank, whole)
    block = slice(comm.rank * step.count, (comm.rank + 1) * step.count)
    expected = result(step, comm.size, whole)[block]
    return buffers(step, mine, expected)


def gathering(step: Step, comm: gradred.Comm) -> Buffers:
    parts = [contribution(step, peer, step.count) for peer in range(comm.size)]
    whole = np.concatenate(parts)
    if not step.in_place:
        return buffers(step, parts[comm.rank], whole)
    both = Guarded.empty(whole.size, step.dtype)
    both.array[comm.rank * step.count : (comm.rank + 1) * step.count] = parts[comm.rank]
    return Buffers(MPI.IN_PLACE, both.array, lambda title: both.problems(whole, title))


def sending(step: Step, comm: gradred.Comm) -> Buffers:
    root = step.root % comm.size
    sent = contribution(step, root, step.count)
    data = Guarded(sent) if comm.rank == root else Guarded.empty(step.count, step.dtype)
    return Buffers(None, data.array, lambda title: data.problems(sent, title))


def allreduce_method(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    found = in_forms(rank, reducing(step, comm))
    comm.Allreduce(found.send, found.recv, op_of(step))
    rank.look(step, found)


def allreduce_function(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    found = reducing(step, comm)
    x = found.recv if step.in_place else found.send
    gradred.allreduce(x, op_of(step), out=found.recv, comm=comm, plan=step.plan)
    rank.look(step, found)


def allreduce_many(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    others = [dtype for dtype in ("int16", "float16", "float64") if step.op in ops_of(dtype)]
    parts = [
        dataclasses.replace(step, dtype=dtype, count=count, in_place=False)
        for dtype, count in [(step.dtype, step.count), *((dtype, 37) for dtype in others)]
    ]
    found = [reducing(part, comm) for part in parts]
    op = gradred.premul(FACTOR) if step.op == "premul" else step.op
    gradred.allreduce_many(
        [one.send for one in found], op, out=[one.recv for one in found], comm=comm
    )
    for one in found:
        rank.look(step, one)


def reduce_scatter_method(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    found = in_forms(rank, scattering(step, comm), given=comm.size)
    comm.Reduce_scatter_block(found.send, found.recv, op_of(step))
    rank.look(step, found)


def reduce_scatter_function(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    step = dataclasses.replace(step, in_place=False)
    found = scattering(step, comm)
    gradred.reduce_scatter_block(found.send, op_of(step), out=found.recv, comm=comm)
    rank.look(step, found)


def allgather_method(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    found = in_forms(rank, gathering(step, comm), got=comm.size)
    comm.Allgather(found.send, found.recv)
    rank.look(step, found)


def bcast_method(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    found = in_forms(rank, sending(step, comm))
    comm.Bcast(found.recv, step.root % comm.size)
    rank.look(step, found)


def bcast_function(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    found = sending(step, comm)
    gradred.bcast(found.recv, step.root % comm.size, out=found.recv, comm=comm)
    rank.look(step, found)


def iallreduce(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    found = in_forms(rank, reducing(step, comm))
    rank.start(step, comm.Iallreduce(found.send, found.recv, op_of(step)), found.check)


def ireduce_scatter(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    found = in_forms(rank, scattering(step, comm), given=comm.size)
    rank.start(step, comm.Ireduce_scatter_block(found.send, found.recv, op_of(step)), found.check)


def start_many(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    for turn in range(6):
        part = dataclasses.replace(step, number=step.number + turn, count=step.count // 8 + turn)
        iallreduce(rank, part, comm)


def drop(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    """Drop the request in flight, and half of the time its buffers, while garbage is collected."""
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)  # at any allocation of Python objects
    try:
        found = reducing(step, comm)
        comm.Iallreduce(found.send, found.recv, op_of(step))
        if step.flag:
            rank.dropped.append((str(step), found))
        del found
        [[] for _ in range(3)]
    finally:
        gc.set_threshold(*thresholds)


def init(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    send, recv = (Guarded.empty(step.count, step.dtype) for _ in range(2))
    request = comm.Allreduce_init(send.array, recv.array, op_of(step))
    rank.persistent[step.later] = (step, request, Buffers(send, recv.array, list), recv)


def fire(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    """Start a persistent call with other values; sometimes by `p()`."""
    made, request, found, recv = rank.persistent[step.later]
    if any(flight.request is request for flight in rank.in_flight):
        rank.wait_for([flight for flight in rank.in_flight if flight.request is request])
    mine = contribution(made, comm.rank, made.count, step.number)
    expected = result(made, comm.size, made.count, step.number)
    found.send.array[:] = mine

    def check(title: str) -> list[str]:
        return recv.problems(expected, title) + found.send.problems(mine, f"{title}, its input")

    if rank.random.random() < 0.5:
        request()
        rank.problems += check(str(step))
    else:
        request.Start()
        rank.start(step, request, check)


def free_persistent(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    request = rank.persistent.pop(step.later)[1]
    rank.wait_for([flight for flight in rank.in_flight if flight.request is request])
    request.Free()
    rank.finished.append(request)


def add_pairs(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    x, y = (np.frombuffer(memory, "float64") for memory in (a, b))
    y += x


OWN = MPI.Op.Create(add_pairs, commute=True)
PAIR = MPI.DOUBLE.Create_contiguous(2).Commit()


def handed_own(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    """A user-defined operation, of a derived type or not."""
    step = dataclasses.replace(step, dtype="float64", op="sum", count=step.count // 2 * 2)
    found = reducing(step, comm)
    if step.flag:
        pairs = [MPI.IN_PLACE if step.in_place else [found.send, step.count // 2, PAIR]]
        comm.Allreduce(*pairs, [found.recv, step.count // 2, PAIR], OWN)
    else:
        comm.Allreduce(found.send, found.recv, OWN)
    rank.look(step, found)


def handed_minloc(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    kind = np.dtype([("value", "f8"), ("where", "i4")], align=True)
    count = min(step.count, 1000)
    x, y = np.zeros(count, kind), np.zeros(count, kind)
    x["value"] = (np.arange(count) + comm.rank) % comm.size
    x["where"] = comm.rank
    kind_of_mpi = MPI.DOUBLE_INT
    if step.flag:
        comm.Allreduce([x, count, kind_of_mpi], [y, count, kind_of_mpi], MPI.MINLOC)
        _check_minloc(rank, step, comm, y)
    else:
        request = comm.Iallreduce([x, count, kind_of_mpi], [y, count, kind_of_mpi], MPI.MINLOC)
        size = comm.size
        rank.start(step, request, lambda title, x=x: minloc_problems(title, size, y))


def minloc_problems(title: str, size: int, y: Array) -> list[str]:
    where = (-np.arange(y.size)) % size
    right = (y["value"] == 0).all() and (y["where"] == where).all()
    return [] if right else [f"{title}: MINLOC gives {y[:3]}"]


def _check_minloc(rank: Rank, step: Step, comm: gradred.Comm, y: Array) -> None:
    rank.problems += minloc_problems(str(step), comm.size, y)


def refused(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    """All ranks refuse, or one alone refuses and the others are notified."""
    x, y = np.ones(step.count + 2), np.ones(step.count + 2)
    wrong = step.flag or comm.rank == step.root % comm.size

    def call() -> None:
        if step.op in ("sum", "min"):
            comm.Allreduce(x, y[1:] if wrong else y)
        elif step.op == "prod":
            comm.Bcast(object() if wrong else x, 0)
        else:
            gradred.allreduce(x, "no such" if wrong else "sum", comm=comm)

    rank.require_refused(call, str(step))


def refused_started(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    x, y = np.ones(step.count + 2), np.ones(step.count + 2)
    # before the set-up the peers' calls are the MPI's, and the peers get no notice
    if not step.flag:
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    if step.flag or comm.rank == step.root % comm.size:
        rank.require_refused(lambda: comm.Iallreduce(x, y[1:]), str(step))
    else:
        request = comm.Iallreduce(x, y)
        rank.start(step, request, lambda title: [], refused=True)


def message(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    """From `root` to the rank `peer` after it, which receives it at once or some steps later."""
    source, target = ends(step, comm)
    data = contribution(step, source, step.count)
    tag = step.number % 30000
    if comm.rank == source:
        sent = Guarded(data)
        now = step.later == step.number
        ways = [comm.Isend, comm.Issend] + ([comm.Send, comm.Ssend] if now else [])
        request = rank.random.choice(ways)(sent.array, target, tag)
        if request is not None:
            rank.start(step, request, lambda title: sent.problems(data, title), ready=step.later)
    if comm.rank == target:
        if step.later == step.number:
            receive(rank, step, comm)
        else:
            rank.messages[step.number] = step


def ends(step: Step, comm: gradred.Comm) -> tuple[int, int]:
    source = step.root % comm.size
    return source, (source + 1 + step.peer % (comm.size - 1)) % comm.size


def receive(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    source = ends(step, comm)[0]
    data = contribution(step, source, step.count)
    tag = step.number % 30000
    into = Guarded.empty(step.count, step.dtype)
    way = rank.random.choice(("Irecv", "Recv", "Probe", "Mprobe", "any source"))
    if way == "Irecv":
        request = comm.Irecv(into.array, source, tag)
        rank.start(step, request, lambda title: into.problems(data, title))
        return
    if way == "Recv":
        comm.Recv(into.array, source, tag)
    elif way == "any source":
        comm.Recv(into.array, MPI.ANY_SOURCE, tag)
    elif way == "Probe":
        while not comm.Iprobe(MPI.ANY_SOURCE, tag):
            time.sleep(0)
        comm.Recv(into.array, source, tag)
    else:
        comm.Mprobe(source, tag).Recv(into.array)
    rank.problems += into.problems(data, f"{step}, received by {way}")


def receive_late(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    late = rank.messages.pop(step.later, None)
    if late is not None:
        receive(rank, late, comm)


def exchange(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    """Every rank sends to the next rank."""
    left = (comm.rank - 1) % comm.size
    data = contribution(step, left, step.count)
    mine, into = contribution(step, comm.rank, step.count), Guarded.empty(step.count, step.dtype)
    tag = 30001  # no message has this tag
    comm.Sendrecv(mine, (comm.rank + 1) % comm.size, tag, into.array, left, tag)
    rank.problems += into.problems(data, str(step))


def ibarrier(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    rank.start(step, comm.Ibarrier(), lambda title: [])


def ibcast(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    found = in_forms(rank, sending(step, comm))
    rank.start(step, comm.Ibcast(found.recv, step.root % comm.size), found.check)


def mpi_allreduce(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    """The MPI's own collectives, on the same communicator, blocking or not."""
    step = dataclasses.replace(step, op="sum", dtype="int64", count=min(step.count, 20_000))
    found = reducing(step, comm)
    if step.flag:
        MPI.Intracomm.Allreduce(comm, found.send, found.recv)
        rank.look(step, found)
    else:
        request = MPI.Intracomm.Iallreduce(comm, found.send, found.recv)
        rank.start(step, request, found.check)


def make(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    """New communicators, by Dup, Clone, Split or Create_group."""
    me = MPI.COMM_WORLD.rank
    mine = next(((i, one) for i, one in enumerate(step.made) if me in one[1]), None)
    if step.plan == "Split":
        key = mine[1][1].index(me) if mine else 0
        made = comm.Split(mine[0] if mine else MPI.UNDEFINED, key)
    elif step.plan == "Create_group":
        if mine is None:
            return
        world = MPI.COMM_WORLD.Get_group()
        group = world.Incl(mine[1][1])
        made = comm.Create_group(group, tag=step.number % 30000)
        group.Free()
        world.Free()
    elif step.plan == "Clone":
        made = comm.Clone()
    elif step.plan == "plain Dup":
        made = MPI.Intracomm.Dup(MPI.Intracomm(comm))
    else:
        made = comm.Dup()
    if mine is None:
        return
    # gradred reads the settings when it first uses the communicator, which is here.
    config.set("shm", step.flag)
    rank.comms[mine[1][0]] = gradred.Comm(made)
    _core.comm_info(rank.comms[mine[1][0]])
    config.reset("shm")
    _core.begin_communicator()  # for those that other tests use first


def is_of_mpi(request: MPI.Request) -> bool:
    """Whether gradred does not know the operation, such as a MINLOC."""
    wrapped = isinstance(request, gradred.Request)
    return not wrapped or (request._operation is None and not request._ended)


def free(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    """Free it while operations on it are in flight, or after they have ended.

    Open MPI frees a communicator under the MPI's own non-blocking collective calls, and crashes.
    """
    flights = [flight for flight in rank.in_flight if flight.comm == step.comm]
    if step.flag:
        of_mpi = [one for one in flights if is_of_mpi(one.request)]
        flights = of_mpi if MPI.get_vendor()[0] == "Open MPI" else []
    rank.wait_for(flights)
    comm.Free()
    del rank.comms[step.comm]


def threads(rank: Rank, step: Step, comm: gradred.Comm) -> None:
    """Run threads, each on its own communicator."""
    by_comm: dict[int, list[Step]] = collections.defaultdict(list)
    for part in step.parts:
        if part.comm in rank.comms:
            by_comm[part.comm].append(part)
    errors: list[BaseException] = []

    def work(parts: list[Step], own: Rank) -> None:
        try:
            for part in parts:
                own.comms[part.comm] = rank.comms[part.comm]
                KINDS[part.kind].run(own, part, own.comms[part.comm])
                if own.in_flight and own.random.random() < 0.5:
                    own.wait_for(own.in_flight)
            own.wait_for(own.in_flight)
        except BaseException as error:
            errors.append(error)

    ranks = [Rank(f"{step.number} {number}", comm) for number in by_comm]
    workers = [
        threading.Thread(target=work, args=pair, daemon=True)
        for pair in zip(by_comm.values(), ranks, strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for own in ranks:
        rank.problems += own.problems
    if errors:
        raise errors[0]


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a step of this kind may contain, and how often it is drawn."""

    run: Callable[[Rank, Step, gradred.Comm], None]
    weight: int = 0
    """0: it is drawn separately."""
    in_threads: bool = False
    mpi_types: bool = False
    """Only types that the MPI has."""
    peers: bool = False
    """It needs two ranks."""


KINDS = {
    "Allreduce": Kind(allreduce_method, 6, in_threads=True),
    "allreduce": Kind(allreduce_function, 8, in_threads=True),
    "allreduce_many": Kind(allreduce_many, 3, in_threads=True),
    "Reduce_scatter_block": Kind(reduce_scatter_method, 3, in_threads=True),
    "reduce_scatter_block": Kind(reduce_scatter_function, 2),
    "Allgather": Kind(allgather_method, 3, in_threads=True),
    "Bcast": Kind(bcast_method, 3, in_threads=True),
    "bcast": Kind(bcast_function, 2),
    "Iallreduce": Kind(iallreduce, 12, in_threads=True),
    "Ireduce_scatter_block": Kind(ireduce_scatter, 4, in_threads=True),
    "start many": Kind(start_many, 2, in_threads=True),
    "drop": Kind(drop, 4),
    "Allreduce_init": Kind(init),
    "Start": Kind(fire),
    "free persistent": Kind(free_persistent),
    "own operation": Kind(handed_own, 3),
    "MINLOC": Kind(handed_minloc, 2),
    "refused": Kind(refused, 2, in_threads=True),
    "refused, started": Kind(refused_started, 2),
    "message": Kind(message, 10, mpi_types=True, peers=True),
    "receive": Kind(receive_late),
    "exchange": Kind(exchange, 3, mpi_types=True),
    "Ibarrier": Kind(ibarrier, 2),
    "Ibcast": Kind(ibcast, 2, mpi_types=True),
    "MPI's allreduce": Kind(mpi_allreduce, 3),
    "make": Kind(make),
    "free": Kind(free),
    "threads": Kind(threads),
}


# ---- the program ----------------------------------------------------------------------------


class Program:
    """Draws the steps; they are the same on all ranks, even if a step concerns only some."""

    def __init__(self, seed: int, size: int) -> None:
        self.random = random.Random(seed)
        self.members: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        self.persistent: dict[int, int] = {}  # communicators, by the number of the call
        self.due: dict[int, Step] = {}  # messages to be received, by step
        self.number = 0
        self.names = 0

    def next(self) -> Step:
        self.number += 1
        if self.number in self.due:
            late = self.due.pop(self.number)
            return Step(self.number, "receive", late.comm, later=late.number)
        chance = self.random.random()
        if chance < 0.09 and len(self.members) <= MOST_COMMS:
            return self.draw_make()
        if chance < 0.15 and (step := self.draw_free()):
            return step
        if chance < 0.22 and (step := self.draw_persistent()):
            return step
        if chance < 0.26 and (step := self.draw_threads()):
            return step
        return self.draw_call(self.random.choice(list(self.members)))

    def draw_call(self, comm: int, in_threads: bool = False) -> Step:
        draw = self.random
        several = len(self.members[comm]) > 1
        names = [
            name
            for name, kind in KINDS.items()
            if kind.weight and (several or not kind.peers) and (kind.in_threads or not in_threads)
        ]
        name = draw.choices(names, [KINDS[name].weight for name in names])[0]
        dtype = draw.choice(MPI_DTYPES if KINDS[name].mpi_types else DTYPES)
        later = self.number
        if name == "message" and draw.random() < 0.4:
            later += draw.randint(1, 9)
            while later in self.due:
                later += 1
        step = Step(
            self.number,
            name,
            comm,
            dtype,
            draw.choice(ops_of(dtype)),
            self.draw_count(dtype),
            in_place=draw.random() < 0.3,
            plan=draw.choice(PLANS) if draw.random() < 0.4 else None,
            root=draw.randrange(16),
            peer=draw.randrange(16),
            later=later,
            flag=draw.random() < 0.5,
        )
        if later > self.number:
            self.due[later] = step
        return step

    def draw_count(self, dtype: str) -> int:
        draw = self.random
        chance = draw.random()
        if chance < 0.4:
            return draw.choice((0, 1, 2, 3, 5, 7, 8, 13, 31))
        size = numpy_dtype(dtype).itemsize
        if chance < 0.7:
            return max(draw.choice(EDGES) // size + draw.randint(-2, 2), 0)
        if chance < 0.95:
            return draw.randint(1, (64 << 10) // size)
        return draw.randint(1, MOST_BYTES // size)

    def draw_make(self) -> Step:
        draw = self.random
        parent = draw.choice(list(self.members))
        members = self.members[parent]
        how = draw.choice(("Dup", "Dup", "Clone", "plain Dup", "Split", "Split", "Create_group"))
        if how == "Split":
            colors = [draw.randrange(3) for _ in members]
            order = draw.sample(range(len(members)), len(members))
            groups = [tuple(members[i] for i in order if colors[i] == color) for color in range(3)]
        elif how == "Create_group":
            groups = [tuple(draw.sample(members, draw.randint(1, len(members))))]
        else:
            groups = [members]
        made = []
        for group in filter(None, groups):
            self.names += 1
            self.members[self.names] = group
            made.append((self.names, group))
        return Step(
            self.number, "make", parent, plan=how, flag=draw.random() < 0.5, made=tuple(made)
        )

    def draw_free(self) -> Step | None:
        busy = {step.comm for step in self.due.values()} | set(self.persistent.values())
        idle = [comm for comm in self.members if comm > 0 and comm not in busy]
        if not idle:
            return None
        comm = self.random.choice(idle)
        del self.members[comm]
        return Step(self.number, "free", comm, flag=self.random.random() < 0.4)

    def draw_persistent(self) -> Step | None:
        draw = self.random
        chance = draw.random()
        if chance < 0.3 or not self.persistent:
            comm = draw.choice(list(self.members))
            dtype = draw.choice(DTYPES)
            step = Step(
                self.number,
                "Allreduce_init",
                comm,
                dtype,
                draw.choice(ops_of(dtype)),
                self.draw_count(dtype),
                later=self.number,
                flag=draw.random() < 0.5,
            )
            self.persistent[self.number] = comm
            return step
        which = draw.choice(list(self.persistent))
        comm = self.persistent[which]
        if chance > 0.85:
            del self.persistent[which]
            return Step(self.number, "free persistent", comm, later=which)
        return Step(self.number, "Start", comm, later=which)

    def draw_threads(self) -> Step | None:
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE or len(self.members) < 2:
            return None
        comms = self.random.sample(list(self.members), min(3, len(self.members)))
        parts = []
        for comm in comms:
            for _ in range(4):
                parts.append(self.draw_call(comm, in_threads=True))
        self.random.shuffle(parts)
        return Step(self.number, "threads", 0, parts=tuple(parts))

    def rest(self) -> list[Step]:
        """Wait for what is left after the last step."""
        steps = []
        for _, late in sorted(self.due.items()):
            steps.append(Step(1 << 20, "receive", late.comm, later=late.number))
        for which, comm in self.persistent.items():
            steps.append(Step(1 << 20, "free persistent", comm, later=which))
        return steps


def play(seed: int, steps: int, verbose: bool = False) -> list[str]:
    """Run one program on all ranks. Returns the problems, as lines."""
    world = gradred.Comm(MPI.COMM_WORLD.Dup())
    program, rank = Program(seed, world.size), Rank(str(seed), world, verbose)

    def run(step: Step) -> None:
        comm = rank.comms.get(step.comm)
        if comm is None:
            return
        if verbose:
            print(f"[{world_rank}] {step}", file=sys.stderr, flush=True)
        try:
            KINDS[step.kind].run(rank, step, comm)
            rank.go_on(step.number)
        except Exception as error:
            where = f"rank {world_rank} of {world.size}, seed {seed}, at {step}"
            raise RuntimeError(where) from error

    world_rank = world.rank
    before = signal.signal(signal.SIGALRM, rank.count_signal)
    try:
        for _ in range(steps):
            run(program.next())
        for step in program.rest():
            run(step)
        rank.wait_for(rank.in_flight)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for comm in list(rank.comms.values()):
        comm.Free()
    while _core.in_flight():  # what the program dropped
        MPI.COMM_WORLD.Iprobe()
    for title, found in rank.dropped:
        rank.problems += found.check(title)
    return rank.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--verbose", action="store_true", help="name each step as it begins")
    parser.add_argument("--seconds", type=float, default=60, help="then show all stacks")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(options.seconds)
    try:
        problems = play(options.seed, options.steps, options.verbose)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
        raise
    for problem in problems:
        print(f"rank {MPI.COMM_WORLD.rank}, seed {options.seed}: {problem}", file=sys.stderr)
    sys.stderr.flush()
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
