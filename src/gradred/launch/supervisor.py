"""The supervisor of one rank, which starts it, reports on it to `gradred run`, and ends it.

`proxy` describes the processes around it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time

from gradred._util import clock
from gradred.launch import begun, failure_board, mpi_segments, proc, protocol, rank_pipe, variables

TYPE_CHECKING = False
if TYPE_CHECKING:  # protocol.py says why `typing` is not imported
    from collections.abc import Mapping
    from typing import Any

# The signals that the proxy passes on. The rank starts with their default handlers.
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT")
)

_READ = 1 << 16
_PIECES_OF_PIPE = 32  # reads that empty a pipe: it holds 64 KiB, or 1 MiB at most if enlarged
_ASIDE = 1.0  # seconds from SIGTERM to SIGKILL, and for a rank's child processes to end
_LOOK_EVERY = 0.5  # seconds between looks at the rank's shared memory until some is found
_AGAIN = 0.02  # seconds between two rounds of SIGKILL


_PR_SET_PDEATHSIG = 1
_NOT_EXECUTABLE = (errno.EACCES, errno.EPERM, errno.ENOEXEC)


class Supervisor:
    """Starts the rank, reports on it to the launcher and ends it; `run` returns at the end."""

    def __init__(self, channel: protocol.ControlChannel, from_proxy: int, prctl: Any) -> None:
        self._channel = channel
        self._from_proxy: int | None = from_proxy  # readable on a signal, or if the proxy ends
        self._prctl = prctl
        self._rank = 0  # the rank's process; 0 before its start and after its end
        self._ended_by: str | None = None
        self._ending = False  # ends the rank without an order of the launcher
        self._outputs: dict[int, bytes] = {}  # descriptor -> kind of message
        self._on_its_way = 0  # bytes of output that the launcher has not confirmed yet
        self._stdin: int | None = None
        self._rank_pipe: int | None = None  # carries the rank's own reports
        self._received = b""
        self._left: tuple[float, bool, str] | None = None  # the rank's report on its end
        self._input = b""
        self._started = self._released = self._gone = False
        self._started_at = 0.0
        self._kill_at = float("inf")
        self._failures = failure_board.FailureBoard() if hasattr(os, "memfd_create") else None
        self._pmi = begun.relay(os.environ)
        self._segments: set[str] = set()
        self._look_again = 0.0
        self._woken, waker = os.pipe()
        for end in (self._woken, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> int:
        """Run until the rank has ended; returns 1 if the launcher has not released this process."""
        while not self._over():
            ready = self._wait()
            if self._woken in ready:
                os.read(self._woken, 512)
            if self._from_proxy in ready:
                self._hear_proxy()
            for kind, payload in self._channel.receive() if self._channel.fileno() in ready else ():
                self._obey(kind, payload)
            for output in [one for one in self._outputs if one in ready]:
                self._pass_on(output)
            if self._rank_pipe in ready:
                self._hear_rank()
            for descriptor in [one for one in self._pmi_sockets() if one in ready]:
                self._pmi.pass_on(descriptor)  # type: ignore[union-attr]
            if self._stdin in ready:
                self._write_input()
            self._channel.flush()
            self._reap()
            if self._channel.lost and not self._ending:
                self._end("launcher")
            if clock.now() >= self._kill_at:
                self._kill()
        if not self._released and self._started:  # spawned processes may have had some as well
            self._segments |= mpi_segments.abandoned(self._started_at)
        mpi_segments.remove(self._segments)  # no process attaches to them any more
        return 0 if self._released else 1

    def _over(self) -> bool:
        alone = self._released or self._from_proxy is None or self._channel.lost is not None
        idle = self._gone or not self._started
        return alone and idle and (not self._channel.pending or self._channel.lost is not None)

    def _wait(self) -> set[int]:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._from_proxy is not None:
            poll.register(self._from_proxy, select.POLLIN)
        if self._channel.lost is None:
            writes = select.POLLOUT if self._channel.pending else 0
            poll.register(self._channel, select.POLLIN | writes)
        if self._on_its_way < protocol.WINDOW:
            for output in self._outputs:
                poll.register(output, select.POLLIN)
        if self._rank_pipe is not None:
            poll.register(self._rank_pipe, select.POLLIN)
        for descriptor in self._pmi_sockets():
            poll.register(descriptor, select.POLLIN)
        if self._stdin is not None and self._input:
            poll.register(self._stdin, select.POLLOUT)
        left = self._kill_at - clock.now()
        return {fd for fd, _ in poll.poll(None if left > 1e6 else clock.nap(max(0.0, left)) * 1000)}

    def _pmi_sockets(self) -> list[int]:
        return self._pmi.descriptors if self._pmi is not None and self._started else []

    def _has_begun(self) -> bool:
        """Return whether the rank, which runs, has begun to initialise its MPI."""
        if self._pmi is not None:
            return self._pmi.used
        return bool(self._rank) and begun.is_client(self._rank, os.environ)

    def _hear_proxy(self) -> None:
        assert self._from_proxy is not None
        signals = os.read(self._from_proxy, 64)
        for number in signals:
            if number == signal.SIGTERM:
                self._ended_by = self._ended_by or "mpiexec"
            self._signal(number)
        if not signals:
            os.close(self._from_proxy)
            self._from_proxy = None
            self._end("mpiexec")

    def _obey(self, kind: bytes, payload: bytes) -> None:
        if kind == protocol.START:
            self._start(protocol.decode(payload))
        elif kind == protocol.SIGNAL:
            self._signal(payload[0])
        elif kind == protocol.END:
            self._ended_by = self._ended_by or "launcher"
            self._signal(payload[0])
        elif kind == protocol.TAKEN:
            self._on_its_way -= protocol.counted(payload)
        elif kind == protocol.STDIN:
            self._input = payload
            if not payload or self._stdin is None:
                self._close_input()
        elif kind == protocol.FAILED:
            self._look_at_segments()  # this rank may end soon as well
            failure = protocol.decode(payload)
            if self._failures is not None:
                self._failures.add(failure["rank"], failure["text"], failure["report"])
        elif kind == protocol.HOSTS:
            if self._failures is not None:
                self._failures.note_hosts()
        elif kind == protocol.ASK:
            if self._has_begun():
                self._channel.send(protocol.BEGUN)
        elif kind == protocol.RELEASE:
            self._released = True

    def _start(self, order: Mapping[str, Any]) -> None:
        own = {name: value for name, value in os.environ.items() if name != protocol.JOB}
        environment = variables.rank_environment(order, own)
        if self._failures is not None:
            environment[failure_board.VARIABLE] = self._failures.where
        stdin = os.pipe() if order["stdin"] else None
        outputs = os.pipe(), os.pipe()
        self._rank_pipe, rank_end = os.pipe()
        os.set_blocking(self._rank_pipe, False)
        os.set_inheritable(rank_end, True)
        environment[rank_pipe.VARIABLE] = f"{rank_end} {os.fstat(rank_end).st_ino}"
        self._rank = os.fork()
        if self._rank == 0:
            reads = stdin[0] if stdin else os.open(os.devnull, os.O_RDONLY)
            self._become_rank(order, environment, (reads, outputs[0][1], outputs[1][1]))
        for (reads, writes), kind in zip(outputs, (protocol.STDOUT, protocol.STDERR), strict=True):
            os.close(writes)
            os.set_blocking(reads, False)
            self._outputs[reads] = kind
        os.close(rank_end)
        if self._pmi is not None:
            self._pmi.leave_rank()
        if stdin:
            os.close(stdin[0])
            self._stdin = stdin[1]
            os.set_blocking(self._stdin, False)
            self._channel.send(protocol.READY)
        self._started = True
        self._started_at = time.time()

    def _become_rank(
        self, order: Mapping[str, Any], environment: dict[str, str], streams: tuple[int, int, int]
    ) -> None:
        """Run the program. Never returns. Descriptors that mpiexec left open stay open."""
        program = order["program"]
        try:
            supervisor = os.getppid()
            os.setsid()
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(1)  # the supervisor ended before prctl took effect
            for wanted, stream in enumerate(streams):
                os.dup2(stream, wanted)
            if self._pmi is not None:
                self._pmi.enter_rank()
            for number in (*SIGNALS, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(order["folder"])
            _execute(program, environment)
        except OSError as error:
            place = error.filename or program[0]
            text = f"cannot start on {os.uname().nodename}: {place}: {error.strerror}\n"
            os.write(2, f"gradred run: {text}".encode(errors="surrogateescape"))
            os._exit(126 if error.errno in _NOT_EXECUTABLE else 127)

    def _pass_on(self, output: int) -> None:
        """Send one piece of a stream of the rank."""
        if not self._segments and clock.now() > self._look_again:
            self._look_at_segments()
        data = os.read(output, _READ)
        if data:
            self._channel.send(self._outputs[output], data)
            self._on_its_way += protocol.weight(data)
        else:
            os.close(output)
            del self._outputs[output]

    def _hear_rank(self) -> None:
        """Pass on the rank's own reports."""
        assert self._rank_pipe is not None
        try:
            data = os.read(self._rank_pipe, _READ)
        except BlockingIOError:
            return
        if not data:
            os.close(self._rank_pipe)
            self._rank_pipe = None
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            if ended := rank_pipe.survived_ranks(line):
                self._channel.send(protocol.SURVIVED, protocol.encode({"ended": ended}))
            elif (without := rank_pipe.left_out(line)) is not None:
                self._channel.send(protocol.SURVIVED, protocol.encode({"left out": without}))
            elif word := rank_pipe.finalize_word(line):
                self._channel.send(protocol.FINALIZE, word)
            else:  # the last report counts: a program may continue after MPI.Finalize()
                self._left = rank_pipe.leaving(line) or self._left

    def _write_input(self) -> None:
        assert self._stdin is not None
        try:
            self._input = self._input[os.write(self._stdin, self._input) :]
        except BlockingIOError:
            return
        except OSError:
            self._close_input()
            return
        if not self._input:
            self._channel.send(protocol.READY)

    def _close_input(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
        self._stdin, self._input = None, b""
        self._channel.send(protocol.CLOSED)

    def _reap(self) -> None:
        """Wait for the rank and its orphaned children, which are children of this process now."""
        if not self._started or self._gone:
            return
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._rank:
                    self._report(status)
        except ChildProcessError:
            self._gone = True
            self._kill_at = float("inf")
            self._drain()
            self._channel.send(protocol.GONE)

    def _report(self, status: int) -> None:
        self._rank = 0
        self._drain()
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 128 + number if number else os.WEXITSTATUS(status)
        # Peers need the time at which a rank began to leave; the exit itself takes a while.
        unsaid = (time.time(), False, "")
        at, follows, report = unsaid if number or self._left is None else self._left
        values = {
            "status": code,
            "signal": number,
            "at": at,
            "follows": follows,
            "report": report,
            "by": self._ended_by,
            "begun": self._pmi.used if self._pmi is not None else None,
            "why": "",
        }
        # MPICH ends in this way if /dev/shm has little memory left, and fails if there is none.
        if number == signal.SIGBUS or (code and not os.path.isdir("/dev/shm")):
            values["why"] = mpi_segments.lack()
            self._segments |= mpi_segments.abandoned(self._started_at)
        self._channel.send(protocol.ENDED, protocol.encode(values))
        self._kill_at = min(self._kill_at, clock.now() + _ASIDE)

    def _drain(self) -> None:
        """Send what the pipes hold now, so that a rank's last output comes before its end."""
        if self._rank_pipe is not None:
            self._hear_rank()
        for descriptor in select.select(self._pmi_sockets(), [], [], 0)[0]:
            self._pmi.pass_on(descriptor)  # type: ignore[union-attr]
        for output in list(self._outputs):
            with contextlib.suppress(BlockingIOError):
                for _ in range(_PIECES_OF_PIPE):
                    if output in self._outputs:
                        self._pass_on(output)

    def _end(self, by: str) -> None:
        self._ending = True
        self._ended_by = self._ended_by or by
        self._signal(signal.SIGTERM)
        self._kill_at = min(self._kill_at, clock.now() + _ASIDE)

    def _look_at_segments(self) -> None:
        """Find the rank's segments in shared memory, now and then and before the rank is ended."""
        self._look_again = clock.now() + _LOOK_EVERY
        if self._rank:
            self._segments |= mpi_segments.mapped_by(proc.tree(self._rank))

    def _signal(self, number: int) -> None:
        self._look_at_segments()
        if number == signal.SIGKILL:
            self._kill_at = 0.0
        elif self._rank:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._rank, number)
                if number == signal.SIGTERM:  # a stopped process would not handle SIGTERM
                    os.killpg(self._rank, signal.SIGCONT)

    def _kill(self) -> None:
        """Send SIGKILL to all descendants; repeated, since they may have forked meanwhile."""
        below = proc.tree(os.getpid()) if self._started and not self._gone else {}
        for pid in below.keys() - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._kill_at = float("inf") if self._gone else clock.now() + _AGAIN


def _execute(program: list[str], environment: Mapping[str, str]) -> None:
    """Execute the program; a script without an interpreter line runs with /bin/sh, as in shells."""
    try:
        os.execvpe(program[0], program, environment)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        with open(error.filename, "rb") as file:
            if b"\0" in file.read(_READ):  # a binary of another machine, or a broken one
                raise
        os.execve("/bin/sh", ["sh", error.filename, *program[1:]], environment)
