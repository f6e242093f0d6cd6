"""A job: mpiexec, the supervisors of its ranks, and the order in which they end.

The state of a rank is known only from its supervisor, never from mpiexec: mpiexec kills survivors,
hangs, or reports success after a host was lost. `supervisor` is the other end of the channels.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from gradred._util import clock
from gradred.launch import failure_board, mpi_segments, processes, protocol, spawned
from gradred.launch.output import Stream
from gradred.launch.rendezvous import RendezvousServer

TERM_TO_KILL = 2.0  # seconds from SIGTERM to SIGKILL
_UNREACHABLE = 5.0  # seconds without a message after SIGKILL until a rank counts as unreachable
_LAST_WORDS = 2.0  # seconds for supervisors to report after mpiexec has ended
_LINGER = 5.0  # seconds for mpiexec to end after its ranks
_LINGER_FOR_LOST = 1.0  # the same after a host was lost: then mpiexec often never ends
_MOMENT = 1.0  # failures that arrive within so many seconds are ordered by their hosts' clocks
_ASK_EVERY = 1.0  # seconds between questions whether ranks have begun to initialise their MPI
_TO_LEAVE = 0.1  # seconds for launch proxies and mpiexec to end after the ranks
_TICK = 0.2  # seconds between checks of the clock and of mpiexec
_ABORTS = b"application called MPI_Abort("  # what the MPICH family writes to stderr

_PR_SET_PDEATHSIG = 1

_STREAMS: dict[bytes, Stream] = {protocol.STDOUT: "stdout", protocol.STDERR: "stderr"}


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, and the ranks that run it: as many as `ranks`, from the first free number on.

    Attributes:
        command: the program and its arguments.
        ranks: the number of its ranks.
        set: variables that its ranks get, besides those of the job.
        folder: the folder in which it starts; empty for this process's.
        text: what the user has typed, for messages of a job of several programs.
    """

    command: Sequence[str]
    ranks: int
    set: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folder: str = ""
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Order:
    """What to start, where, and with which settings.

    Attributes:
        launcher: mpiexec and its options.
        programs: the programs, in the order of their ranks.
        remote: the hosts that have to reach this one; empty if all ranks run here.
        environment: mpiexec's variables.
        carried: variables that every rank gets, unless mpiexec has set them for it.
        set: variables that every rank gets in any case.
        stdin: whether rank 0 gets input.
        cores: the cores of this host, which its ranks share.
        bound: whether mpiexec binds each rank to its share.
        grace: seconds that the other ranks have after the first rank failed.
        again: the status by which a rank requests a restart of the job; it counts as no failure.
    """

    launcher: Sequence[str]
    programs: Sequence[Program]
    environment: Mapping[str, str]
    carried: Mapping[str, str]
    cores: int
    remote: Sequence[str] = ()
    set: Mapping[str, str] = dataclasses.field(default_factory=dict)
    stdin: bool = False
    bound: bool = False
    grace: float = 5.0
    again: int | None = None

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return sum(program.ranks for program in self.programs)

    def program_of(self, rank: int) -> Program:
        """Return the program that a rank runs."""
        for program in self.programs:
            if rank < program.ranks:
                return program
            rank -= program.ranks
        raise IndexError(rank)


@dataclasses.dataclass(frozen=True)
class Cause:
    """How ranks failed."""

    text: str  # "killed by SIGKILL", "exited with status 3"
    passive: bool = False  # whether a sentence needs "was" before it

    def of(self, ranks: int) -> str:
        """Return the end of a sentence whose subject is so many ranks."""
        return (("was " if ranks == 1 else "were ") if self.passive else "") + self.text

    def __str__(self) -> str:
        return self.of(1)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A rank that failed by itself; its status is 128 + signal if a signal ended it."""

    rank: int
    host: str
    status: int
    cause: Cause
    at: float  # seconds since 1970, by its host's clock
    follows: bool = False  # the rank failed after it had lost others, whose failures follow
    report: str = ""  # how its communicator failed, for csrc/liveness/failure_board.h only
    program: str = ""  # what it ran, if the job has several programs


@dataclasses.dataclass
class _Rank:
    number: int
    host: str = ""
    channel: protocol.ControlChannel | None = None
    ended: bool = False
    status: int = 0  # its exit status, once it has ended
    ended_at: float = 0.0
    begun: bool | None = None  # whether it has begun to initialise its MPI; None if unknown
    gone: bool = False  # no process of it is left, or it cannot be reached
    asked_to_end: bool = False
    considers_ended: set[int] = dataclasses.field(default_factory=set)  # as it has reported
    left_out: set[int] = dataclasses.field(default_factory=set)  # as it has reported, alive or not
    finalize: bytes = b""  # its last report on MPI_Finalize, see protocol
    aborted: bool = False  # it has called MPI_Abort

    @property
    def goes_on_without(self) -> set[int]:
        """The ranks that it does not wait for."""
        return self.considers_ended | self.left_out


def gone_on_without(ranks: Sequence[_Rank], failed: Collection[int]) -> set[int]:
    """Return the failed ranks without which every running rank has reported to continue.

    A rank that has reported nothing may wait for them forever. A running rank that others consider
    ended is about to leave the program. One that others have left out, and that has not gone on by
    itself, is not needed. What a failed rank has reported does not count.
    """
    others = [rank for rank in ranks if rank.number not in failed]
    considered_ended = set[int]().union(*(rank.considers_ended for rank in others))
    left_out = set[int]().union(*(rank.left_out for rank in others))
    running = [
        rank
        for rank in others
        if not (rank.ended or rank.gone or rank.number in considered_ended)
        and (rank.number not in left_out or rank.goes_on_without)
    ]
    named = considered_ended | left_out
    return set(failed).intersection(named, *(rank.goes_on_without for rank in running))


_prctl = ctypes.CDLL(None).prctl


def _die_with_parent() -> None:
    """Let the kernel end mpiexec if this process is killed: it would wait for spawned processes."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Job:
    """A running job. Not thread-safe; all progress is made in `turn`.

    Args:
        order: what to start.
        output: called with each piece of output and its rank; None for mpiexec's own output.
        selector: the selector in which the job registers its descriptors. The caller may add
            others; the data of each is a function of the event mask.
        congested: returns whether the ranks must wait with their output.
    """

    def __init__(
        self,
        order: Order,
        output: Callable[[int | None, Stream, bytes], None],
        selector: selectors.BaseSelector,
        congested: Callable[[], bool] = lambda: False,
    ) -> None:
        self._order = order
        self._output = output
        self._selector = selector
        self._congested = congested
        self._ranks = [_Rank(number) for number in range(order.ranks)]
        self._rendezvous = RendezvousServer(order.remote, order.ranks, selector, self._admit)
        self._taken: dict[int, int] = {}  # bytes of output by rank, not confirmed yet
        self._plan: list[tuple[float, int]] = []  # signals to send to the ranks, and when
        self.ending = False  # whether ranks have been asked to end
        self._unsorted: list[Failure] = []
        self._moment_since = 0.0  # when the first of the latest failures was noticed
        self._before = 0  # the number of earlier failures
        self._grace: list[tuple[float, int]] = []  # the entries of the plan for the last failure
        self._survived: set[int] = set()  # failed ranks that the others continue without
        self._any_skipped = False
        self._stuck_since: float | None = None
        self._ask_at = 0.0
        self.let_go: list[int] = []  # ranks that have ended, whose end Open MPI's mpiexec judges
        self._released_at: float | None = None
        self._mpiexec_ended_at: float | None = None
        self.failures: list[Failure] = []
        self.ended_by_mpiexec: list[int] = []
        self.want_again: list[int] = []  # ranks that have requested a restart of the job
        self.silent: dict[str, list[int]] = {}  # ranks without a report after SIGKILL, by host
        self._linger = _LINGER
        self.left_hanging = False
        self.waits_for_spawned = False  # whether mpiexec runs on for what ranks have spawned
        self.ended_spawned = 0  # processes that ranks had spawned, and that ended with the job
        self._kill_spawned_at = float("inf")
        self.withheld: list[tuple[Stream, bytes]] = []
        self.on_ready: Callable[[], None] = lambda: None  # rank 0 takes input
        self.on_closed: Callable[[], None] = lambda: None  # rank 0 takes no more input
        self._began = time.time()
        self._mpiexec = self._start()

    @property
    def over(self) -> bool:
        """Whether all ranks and mpiexec have ended."""
        return self._released_at is not None and self._mpiexec.poll() is not None

    @property
    def missing(self) -> list[int]:
        """Ranks that mpiexec has not started."""
        return [rank.number for rank in self._ranks if rank.channel is None]

    @property
    def ended_late(self) -> list[int]:
        """Ranks that ended because the job had asked them to."""
        return [rank.number for rank in self._ranks if rank.asked_to_end and rank.ended]

    @property
    def in_order(self) -> bool:
        """Whether all ranks have ended by themselves, with status 0."""
        return all(rank.ended and not rank.status for rank in self._ranks)

    @property
    def mpiexec_status(self) -> int:
        """The exit status of mpiexec once it has ended; 128 + signal if a signal ended it."""
        code = self._mpiexec.returncode or 0
        return code if code >= 0 else 128 - code

    @property
    def fatal(self) -> list[Failure]:
        """The failures that have ended the job."""
        return [one for one in self.failures if one.rank not in self._survived]

    @property
    def survived(self) -> list[Failure]:
        """The other failures: the ranks that still run have shrunk their communicator."""
        return [one for one in self.failures if one.rank in self._survived]

    @property
    def status(self) -> int:
        """The first failed rank's status; mpiexec's if no rank has failed by itself, or by abort.

        MPI_Abort of the MPICH family returns, and the program goes on until mpiexec ends it. So the
        rank may end with another status than the one that it gave.
        """
        if self.fatal:
            first = self.fatal[0]
            of_abort = self.mpiexec_status if self._ranks[first.rank].aborted else 0
            return of_abort or first.status
        if self.ended_by_mpiexec or not all(rank.ended for rank in self._ranks):
            return self.mpiexec_status or 1
        return self.mpiexec_status if self.waits_for_spawned else 0

    def turn(self, seconds: float = _TICK) -> None:
        """Wait for events for at most so many seconds, and handle them."""
        for key, mask in self._selector.select(clock.nap(min(seconds, _TICK))):
            key.data(mask)
        self._rendezvous.turn_away_late()
        if self._taken and not self._congested():
            self._ask_for_more()
        self._sort_failures()
        self._watch_mpiexec()
        self._watch_finalize()
        self._watch_init()
        now = clock.now()
        while self._plan and self._plan[0][0] <= now:
            self._carry_out(self._plan.pop(0)[1])
        if self._released_at is None and all(rank.gone for rank in self._ranks):
            self._release()

    def announce_hosts(self) -> None:
        """Notify every rank that the available hosts are not those of the job."""
        self._send_to_all(protocol.HOSTS)

    def pass_on(self, number: int) -> None:
        """Send a signal to every rank's process group."""
        self._send_to_all(protocol.SIGNAL, bytes([number]))

    def end(self, number: int, kill_after: float) -> None:
        """Ask all ranks to end by a signal; SIGKILL follows after so many seconds."""
        self.ending = True
        for rank in self._ranks:
            rank.asked_to_end = rank.asked_to_end or not rank.ended
            rank.gone = rank.gone or rank.channel is None  # if it starts later, it is rejected
        self._send_to_all(protocol.END, bytes([number]))
        if number == signal.SIGKILL:
            self._schedule(_UNREACHABLE, 0)
        else:
            self._schedule(kill_after, signal.SIGKILL)

    def send_input(self, data: bytes) -> None:
        """Send input to rank 0, empty at its end; one piece after each `on_ready`."""
        self._send(self._ranks[0], protocol.STDIN, data)

    def close(self) -> None:
        """End all processes of the job and all connections at once."""
        if not self.over:
            self.end(signal.SIGKILL, 0)
            deadline = clock.now() + _UNREACHABLE + _LINGER
            while not self.over and clock.now() < deadline:
                self.turn(0.02)
        processes.end_tree(self._mpiexec, grace=1.0)
        if not self.in_order:  # of processes that ranks had spawned, which no supervisor knows
            mpi_segments.remove(mpi_segments.abandoned(self._began))
        self._rendezvous.close()
        for rank in self._ranks:
            if rank.channel is not None:
                self._forget(rank.channel)
                rank.channel.close()
        for stream in (self._mpiexec.stdout, self._mpiexec.stderr):
            assert stream is not None
            self._forget(stream)
            stream.close()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._order.launcher,
            # JOB comes first: -genvlist of MPICH 5.0.2 misses the last variable of an environment.
            env={protocol.JOB: self._rendezvous.key, **self._order.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # this process handles the terminal's signals
            preexec_fn=_die_with_parent,
        )
        streams: tuple[tuple[Any, Stream], ...] = (
            (process.stdout, "stdout"),
            (process.stderr, "stderr"),
        )
        for pipe, stream in streams:
            hear = functools.partial(self._hear_mpiexec, pipe, stream)
            self._selector.register(pipe, selectors.EVENT_READ, hear)
        return process

    def _hear_mpiexec(self, pipe: Any, stream: Stream, _: int) -> None:
        data = os.read(pipe.fileno(), 65536)
        if not data:
            self._forget(pipe)
        elif self.failures or self._unsorted or (self._released_at and not self.waits_for_spawned):
            self.withheld.append((stream, data))  # gradred's own message explains the end better
        else:
            self._output(None, stream, data)

    def _admit(self, channel: protocol.ControlChannel, number: int, host: str) -> None:
        """Accept the supervisor of a rank, and order it to start the rank."""
        rank = self._ranks[number]
        if rank.channel or rank.gone:
            channel.send(protocol.RELEASE)  # otherwise mpiexec would see a failure
            channel.close()
            return
        rank.channel, rank.host = channel, host
        hear = functools.partial(self._hear_rank, rank)
        self._selector.register(channel, selectors.EVENT_READ, hear)
        order = self._order
        program = order.program_of(number)
        values = {
            "program": list(program.command),
            "folder": program.folder or os.getcwd(),
            "environment": dict(order.carried),
            "set": {**order.set, **program.set},
            "stdin": order.stdin and number == 0,
            "host": os.uname().nodename,
            "cores": order.cores,
            "ranks": order.ranks,
            "bound": order.bound,
        }
        channel.send(protocol.START, protocol.encode(values))
        self._watch(rank)
        if not self.missing:
            self._rendezvous.close()

    def _hear_rank(self, rank: _Rank, mask: int) -> None:
        channel = rank.channel
        assert channel is not None
        if mask & selectors.EVENT_WRITE:
            channel.flush()
        if mask & selectors.EVENT_READ:
            try:
                for kind, payload in channel.receive():
                    self._take(rank, kind, payload)
            except (ValueError, KeyError, TypeError):  # in the supervisor's message
                channel.lost = protocol.NOT_A_MESSAGE
        self._watch(rank)

    def _take(self, rank: _Rank, kind: bytes, payload: bytes) -> None:
        if kind in _STREAMS:
            rank.aborted = rank.aborted or _ABORTS in payload
            self._output(rank.number, _STREAMS[kind], payload)
            self._taken[rank.number] = self._taken.get(rank.number, 0) + protocol.weight(payload)
        elif kind == protocol.ENDED:
            self._note_end(rank, protocol.decode(payload))
        elif kind == protocol.GONE:
            rank.gone = True
        elif kind == protocol.READY:
            self.on_ready()
        elif kind == protocol.CLOSED:
            self.on_closed()
        elif kind == protocol.SURVIVED and not self.ending:  # too late once the job is ending
            report = protocol.decode(payload)
            rank.considers_ended.update(report.get("ended", ()))
            rank.left_out = set(report.get("left out", rank.left_out))
        elif kind == protocol.FINALIZE:
            rank.finalize = payload
            self._any_skipped = self._any_skipped or payload == b"skips"
        elif kind == protocol.BEGUN:
            rank.begun = True

    def _ask_for_more(self) -> None:
        for number, size in self._taken.items():
            self._send(self._ranks[number], protocol.TAKEN, protocol.count(size))
        self._taken.clear()

    def _note_end(self, rank: _Rank, end: Mapping[str, Any]) -> None:
        rank.ended, rank.status, rank.ended_at = True, end["status"], clock.now()
        rank.begun = end["begun"]
        if end["by"] == "mpiexec":
            self.ended_by_mpiexec.append(rank.number)
        elif end["status"] and end["status"] == self._order.again:
            self.want_again.append(rank.number)
        elif end["status"] and not rank.asked_to_end and not self.ending:
            killed = bool(end["signal"])
            how = f"exited with status {end['status']}"
            if killed:
                how = f"killed by {processes.signal_name(end['signal'])}"
            if rank.aborted:
                how = "called MPI_Abort"
            more = {"follows": end["follows"], "report": end["report"]}
            self._fail(rank, end["status"], how + end["why"], killed, at=end["at"], **more)
        elif end["report"] and not self.ending:  # its peers must not send to it any more
            self._announce_failed(rank.number, "has ended", end["report"])

    def _lose(self, rank: _Rank, channel: protocol.ControlChannel) -> None:
        """Note that the channel to a supervisor is lost; a running supervisor ends its rank."""
        rank.gone = True
        if rank.ended or rank.asked_to_end:
            return
        if channel.ended_by_peer:
            status = 128 + signal.SIGKILL
            how = "lost: the process that watches over it was killed"
        else:
            self._linger = _LINGER_FOR_LOST
            status, how = 1, f"lost: its host does not answer ({channel.lost})"
        self._fail(rank, status, how, passive=True)

    def _fail(self, rank: _Rank, status: int, how: str, passive: bool = False, **more: Any) -> None:
        several = len(self._order.programs) > 1
        program = self._order.program_of(rank.number).text if several else ""
        known = {"at": time.time(), "program": program, **more}
        cause = Cause(how, passive)
        self._unsorted.append(Failure(rank.number, rank.host, status, cause, **known))

    def _announce_failed(self, number: int, text: str, report: str) -> None:
        values = {"rank": number, "text": text, "report": report}
        self._send_to_all(protocol.FAILED, protocol.encode(values))

    def _sort_failures(self) -> None:
        """Order failures that arrived within a moment by their hosts' clocks.

        After the first failure that the others do not survive, they have the grace period to end
        or to shrink.
        """
        new = sorted(self._unsorted, key=lambda failure: failure.at)
        for failure in new[: max(0, failure_board.ENTRIES - len(self.failures))]:
            text = f"on {failure.host} {failure.cause}"
            self._announce_failed(failure.rank, text, failure.report)
        self._order_in(new)
        self._unsorted.clear()
        if not self.ending:
            failed = {failure.rank for failure in self.failures}
            self._survived.update(gone_on_without(self._ranks, failed))
        if self.fatal and not self._grace:
            grace = self._order.grace
            self._grace = [
                self._schedule(grace, signal.SIGTERM),
                self._schedule(grace + TERM_TO_KILL, signal.SIGKILL),
            ]
        elif self._grace and not self.fatal and not self.ending:
            self._plan = [entry for entry in self._plan if entry not in self._grace]
            self._grace = []

    def _order_in(self, new: list[Failure]) -> None:
        if not new:
            return
        now = clock.now()
        if now > self._moment_since + _MOMENT:
            self._moment_since, self._before = now, len(self.failures)
        self.failures += new
        self.failures[self._before :] = sorted(
            self.failures[self._before :], key=lambda failure: failure.at
        )
        self.failures.sort(key=lambda failure: failure.follows)  # consequences come last

    def _schedule(self, seconds: float, number: int) -> tuple[float, int]:
        entry = (clock.now() + seconds, number)
        self._plan = sorted([*self._plan, entry])
        return entry

    def _carry_out(self, number: int) -> None:
        if number:
            self.end(number, TERM_TO_KILL)
            return
        for rank in self._ranks:  # they have not reported anything since SIGKILL
            if not rank.gone and not rank.ended:
                self.silent.setdefault(rank.host, []).append(rank.number)
            rank.gone = True

    def _watch_mpiexec(self) -> None:
        now = clock.now()
        if self._mpiexec.poll() is None:
            if self._released_at is not None:
                self._watch_spawned(now)
            if self._released_at is not None and now > self._released_at + self._linger:
                self.left_hanging = True
                processes.end_tree(self._mpiexec, grace=0.5)
        elif self._released_at is None:
            self._mpiexec_ended_at = self._mpiexec_ended_at or now
            grace = _LAST_WORDS if self._living() else _TICK
            if now > self._mpiexec_ended_at + grace:
                self._mpiexec_ended_at = float("inf")
                for rank in self._living():
                    if not rank.ended:
                        status = self.mpiexec_status or 1
                        self._fail(rank, status, "lost: mpiexec left it alone", passive=True)
                self._sort_failures()
                self.end(signal.SIGTERM, TERM_TO_KILL)

    def _watch_spawned(self, now: float) -> None:
        """Let the processes that ranks have spawned finish, as mpiexec does, or end them.

        They end with the job if it was interrupted, or if a rank has not ended in order.
        """
        assert self._released_at is not None
        if now < self._released_at + _TO_LEAVE or now > self._kill_spawned_at:
            return
        found = spawned.below(self._mpiexec.pid)
        if found and self.in_order and not self.ending:
            self.waits_for_spawned = True
            self._released_at = now  # mpiexec has nothing to end for yet
        elif found and not self.ended_spawned:
            self.ended_spawned = len(found)
            self._kill_spawned_at = now + TERM_TO_KILL
            processes.signal_all(found, signal.SIGTERM)
        elif now + _TICK > self._kill_spawned_at:
            processes.signal_all(found, signal.SIGKILL)

    def _watch_finalize(self) -> None:
        """End ranks stuck in MPI_Finalize: it waits for all ranks, also for those that skip it."""
        if not self._any_skipped or self.ending:
            return
        running = [rank for rank in self._ranks if not (rank.ended or rank.gone)]
        stuck = running and all(rank.finalize == b"enters" for rank in running)
        now = clock.now()
        self._stuck_since = (self._stuck_since or now) if stuck else None
        if self._stuck_since is None or now < self._stuck_since + self._order.grace:
            return
        for rank in running:
            self._fail(rank, 1, "waited in MPI_Finalize for ranks that ended without it")
        self._sort_failures()
        self.end(signal.SIGTERM, TERM_TO_KILL)

    def _watch_init(self) -> None:
        """End ranks that wait in MPI_Init for one that has ended without it.

        MPICH's mpiexec lets them wait. Open MPI's ends the job, once it sees the end of the rank.
        """
        now = clock.now()
        early = [rank for rank in self._ranks if rank.gone and self._has_ended_silently(rank)]
        if not early or self.ending or now < self._ask_at:
            return
        self._ask_at = now + _ASK_EVERY
        running = [rank for rank in self._ranks if not (rank.ended or rank.gone)]
        if not any(rank.begun for rank in running):
            for rank in running:
                self._send(rank, protocol.ASK)
            return
        for rank in early:
            if rank.begun is False:
                rank.status = 1
                self._fail(rank, 1, "ended with status 0 before MPI_Init, in which others wait")
            elif now > rank.ended_at + self._order.grace:
                self.let_go.append(rank.number)
                self._send(rank, protocol.RELEASE)

    def _has_ended_silently(self, rank: _Rank) -> bool:
        """Return whether a rank has ended in order and may never have initialised its MPI."""
        by_itself = rank.ended and not rank.status and rank.number not in self.let_go
        return by_itself and not rank.finalize and not rank.begun

    def _release(self) -> None:
        self._released_at = clock.now()
        self._send_to_all(protocol.RELEASE)

    def _send_to_all(self, kind: bytes, payload: bytes = b"") -> None:
        for rank in self._ranks:
            self._send(rank, kind, payload)

    def _send(self, rank: _Rank, kind: bytes, payload: bytes = b"") -> None:
        if rank.channel is not None and rank.channel.lost is None:
            rank.channel.send(kind, payload)
            self._watch(rank)

    def _living(self) -> Iterable[_Rank]:
        return [rank for rank in self._ranks if rank.channel is not None and not rank.gone]

    def _watch(self, rank: _Rank) -> None:
        """Watch a rank's connection for the events that it needs, in either direction."""
        assert rank.channel is not None
        if rank.channel.lost is not None:
            self._forget(rank.channel)
            if not rank.gone:
                self._lose(rank, rank.channel)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if rank.channel.pending else 0)
        key = self._selector.get_key(rank.channel)
        if key.events != events:
            self._selector.modify(rank.channel, events, key.data)

    def _forget(self, file: Any) -> None:
        if file in self._selector.get_map():
            self._selector.unregister(file)
