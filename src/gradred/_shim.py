"""What stands between mpiexec and each rank; started as `python -I -S _shim.py` by mpiexec.

Two processes per rank. The *shim* is the one that mpiexec started: it keeps mpiexec's descriptors,
hands mpiexec's signals on and ends when the keeper does, so that mpiexec sees no rank end before
all have. The *keeper*, in a session of its own, starts the rank in another session, and is
connected to `gradred run`: it sends the rank's output and its end, and carries out its orders. If
shim or connection are lost, the keeper ends the rank; if the keeper is killed, the kernel does.

This file imports nothing of gradred and little else: it is loaded once per rank, without
site-packages. Its first part, the messages, is what `gradred run` imports.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` costs as much time as the rest together
    from collections.abc import Iterable, Mapping
    from typing import Any

# The variable that tells a shim where to connect: a secret, then addresses, separated by spaces.
JOB = "_GRADRED_JOB"

# What a rank's launcher says about it: (rank, size), per kind of launcher.
RANK_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_RANKS_OF_HOST = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

# Kinds of message. From a keeper: who it is, output, how the rank ended, that nothing of it is
# left, that more input is welcome, that none is. To a keeper: what to run, a signal, input (empty
# for its end), leave to end.
HELLO, STDOUT, STDERR, ENDED, GONE, READY, CLOSED = b"h", b"o", b"e", b"x", b"g", b"r", b"c"
START, SIGNAL, STDIN, RELEASE = b"s", b"k", b"i", b"z"

Message = tuple[bytes, bytes]

_HEADER = struct.Struct("!cI")
_LARGEST = 1 << 26
_READ = 1 << 16
_PIECES_OF_PIPE = 32  # a pipe holds 64 KiB unless it was enlarged, to 1 MiB at most
_ENOUGH_PENDING = 1 << 18  # bytes on their way, from which on a rank has to wait with its output
_CONNECT = 20.0  # seconds to reach the launcher
_ASIDE = 1.0  # seconds from SIGTERM to SIGKILL, and for what a rank leaves behind to end by itself
_AGAIN = 0.02  # seconds between two rounds of SIGKILL

# A host that does not answer for about 20 s is lost; the kernels find that out, no process wakes.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
)


class Wire:
    """A connection that carries messages and never blocks; `lost` says why it has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.lost: str | None = None
        connection.setblocking(False)
        for option in _KEEP_ALIVE:
            connection.setsockopt(*option)

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    @property
    def pending(self) -> int:
        """Bytes that the connection has not taken yet."""
        return len(self._outgoing)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Queue a message and send what can be sent."""
        self._outgoing += _HEADER.pack(kind, len(payload)) + payload
        self.flush()

    def flush(self) -> None:
        """Send what can be sent."""
        try:
            while self._outgoing and self.lost is None:
                del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)

    def receive(self) -> list[Message]:
        """The messages that have arrived whole."""
        try:
            data = self._socket.recv(4 * _READ)
            self._incoming += data
            if not data:
                self.lost = self.lost or "it was closed"
        except BlockingIOError:
            return []
        except OSError as error:
            self._lose(error)
        return list(self._take())

    def close(self) -> None:
        """End the connection."""
        self.lost = self.lost or "closed here"
        self._socket.close()

    def _take(self) -> Iterable[Message]:
        while len(self._incoming) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._incoming)
            if length > _LARGEST:
                self.lost = "it speaks another language"
                return
            end = _HEADER.size + length
            if len(self._incoming) < end:
                return
            payload = bytes(self._incoming[_HEADER.size : end])
            del self._incoming[:end]
            yield kind, payload

    def _lose(self, error: OSError) -> None:
        self.lost = self.lost or error.strerror or type(error).__name__


def encode(values: Mapping[str, Any]) -> bytes:
    """A message's values; names that are not UTF-8 survive."""
    return json.dumps(values).encode()


def decode(payload: bytes) -> dict[str, Any]:
    """What `encode` was given."""
    values: dict[str, Any] = json.loads(payload)
    return values


# From here on: the shim and the keeper.

# Set by mpiexec for each rank: what the launching shell had under these names does not replace it.
_OF_MPIEXEC = ("PMI", "OMPI_", "PRTE_", "OPAL_", "HYD", "MPI_LOCAL", "I_MPI_")
# True of one host only.
_OF_HOST = ("HOSTNAME", "HOST", "SLURMD_NODENAME", "SHLVL", "_", "OLDPWD", "XDG_RUNTIME_DIR")
_OF_LOGIN = ("SSH_", "DBUS_", "XDG_SESSION_")

_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT")
_SIGNALS = tuple(getattr(signal, name) for name in _PASSED_ON)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def rank_environment(order: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, str]:
    """A rank's variables: those of the launching shell, and what mpiexec set for this rank.

    Args:
        order: START's values.
        own: this process's variables.
    """
    here = order["host"] == os.uname().nodename
    environment = dict(own)
    for name, value in order["environment"].items():
        of_host = name in _OF_HOST or name.startswith(_OF_LOGIN)
        of_host = of_host or (name == "TMPDIR" and name in own)
        if not (name in own and name.startswith(_OF_MPIEXEC)) and (here or not of_host):
            environment[name] = value
    environment.update(order["set"])
    if "TMPDIR" in environment and not os.path.isdir(environment["TMPDIR"]):
        del environment["TMPDIR"]  # the launching host's
    for name in THREAD_VARIABLES:
        environment.setdefault(name, str(_share(order, own, here)))
    return environment


def _share(order: Mapping[str, Any], own: Mapping[str, str], here: bool) -> int:
    """Cores for each thread pool of this rank."""
    cores = len(os.sched_getaffinity(0))
    if order["bound"]:  # what mpiexec left of the mask is this rank's alone
        return cores
    if here:
        cores = min(cores, order["cores"])
    ranks = next((int(own[name]) for name in _RANKS_OF_HOST if name in own), order["ranks"])
    return int(max(1, cores // ranks))


class _Keeper:
    """Starts the rank, reports it to the launcher and ends it; `run` returns when all is done."""

    def __init__(self, wire: Wire, lifeline: int, prctl: Any) -> None:
        self._wire = wire
        self._lifeline: int | None = lifeline  # readable: signals from the shim, its end
        self._prctl = prctl
        self._rank = 0  # its process, 0 before and after
        self._ended_by: str | None = None
        self._outputs: dict[int, bytes] = {}  # descriptor -> kind of message
        self._stdin: int | None = None
        self._input = b""
        self._started = self._released = self._gone = False
        self._kill_at = float("inf")
        self._woken, waker = os.pipe()
        for end in (self._woken, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> int:
        while not self._over():
            ready = self._wait()
            if self._woken in ready:
                os.read(self._woken, 512)
            if self._lifeline in ready:
                self._hear_shim()
            for kind, payload in self._wire.receive() if self._wire.fileno() in ready else ():
                self._obey(kind, payload)
            for output in [one for one in self._outputs if one in ready]:
                self._pass_on(output)
            if self._stdin in ready:
                self._write_input()
            self._wire.flush()
            self._reap()
            if self._wire.lost and self._ended_by is None:
                self._end("launcher")
            if time.monotonic() >= self._kill_at:
                self._kill()
        return 0 if self._released else 1

    def _over(self) -> bool:
        alone = self._released or self._lifeline is None or self._wire.lost is not None
        idle = self._gone or not self._started
        return alone and idle and (not self._wire.pending or self._wire.lost is not None)

    def _wait(self) -> set[int]:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._lifeline is not None:
            poll.register(self._lifeline, select.POLLIN)
        if self._wire.lost is None:
            writes = select.POLLOUT if self._wire.pending else 0
            poll.register(self._wire, select.POLLIN | writes)
        if self._wire.pending < _ENOUGH_PENDING:
            for output in self._outputs:
                poll.register(output, select.POLLIN)
        if self._stdin is not None and self._input:
            poll.register(self._stdin, select.POLLOUT)
        left = self._kill_at - time.monotonic()
        return {fd for fd, _ in poll.poll(None if left > 1e6 else max(0.0, left) * 1000)}

    def _hear_shim(self) -> None:
        assert self._lifeline is not None
        signals = os.read(self._lifeline, 64)
        for number in signals:
            if number == signal.SIGTERM:
                self._ended_by = self._ended_by or "mpiexec"
            self._signal(number)
        if not signals:
            os.close(self._lifeline)
            self._lifeline = None
            self._end("mpiexec")

    def _obey(self, kind: bytes, payload: bytes) -> None:
        if kind == START:
            self._start(decode(payload))
        elif kind == SIGNAL:
            self._ended_by = self._ended_by or "launcher"
            self._signal(payload[0])
        elif kind == STDIN:
            self._input = payload
            if not payload or self._stdin is None:
                self._close_input()
        elif kind == RELEASE:
            self._released = True

    def _start(self, order: Mapping[str, Any]) -> None:
        own = {name: value for name, value in os.environ.items() if name != JOB}
        environment = rank_environment(order, own)
        stdin = os.pipe() if order["stdin"] else None
        outputs = os.pipe(), os.pipe()
        self._rank = os.fork()
        if self._rank == 0:
            reads = stdin[0] if stdin else os.open(os.devnull, os.O_RDONLY)
            self._become_rank(order, environment, (reads, outputs[0][1], outputs[1][1]))
        for (reads, writes), kind in zip(outputs, (STDOUT, STDERR), strict=True):
            os.close(writes)
            os.set_blocking(reads, False)
            self._outputs[reads] = kind
        if stdin:
            os.close(stdin[0])
            self._stdin = stdin[1]
            os.set_blocking(self._stdin, False)
            self._wire.send(READY)
        self._started = True

    def _become_rank(
        self, order: Mapping[str, Any], environment: dict[str, str], streams: tuple[int, int, int]
    ) -> None:
        """Never returns. The descriptors that mpiexec left open for the rank stay open."""
        program = order["program"]
        try:
            keeper = os.getppid()
            os.setsid()
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:
                os._exit(1)  # it died before that
            for wanted, stream in enumerate(streams):
                os.dup2(stream, wanted)
            for number in (*_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(order["folder"])
            os.execvpe(program[0], program, environment)
        except OSError as error:
            place = error.filename or program[0]
            text = f"cannot start on {os.uname().nodename}: {place}: {error.strerror}\n"
            os.write(2, f"gradred run: {text}".encode(errors="surrogateescape"))
            os._exit(126 if isinstance(error, PermissionError) else 127)

    def _pass_on(self, output: int) -> None:
        """Send a piece of what one of the rank's streams holds."""
        data = os.read(output, _READ)
        if data:
            self._wire.send(self._outputs[output], data)
        else:
            os.close(output)
            del self._outputs[output]

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
            self._wire.send(READY)

    def _close_input(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
        self._stdin, self._input = None, b""
        self._wire.send(CLOSED)

    def _reap(self) -> None:
        """Wait for the rank, and for what it left behind: that has become this process's child."""
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
            self._wire.send(GONE)

    def _report(self, status: int) -> None:
        self._rank = 0
        self._drain()
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 128 + number if number else os.WEXITSTATUS(status)
        values = {"status": code, "signal": number, "at": time.time(), "by": self._ended_by}
        self._wire.send(ENDED, encode(values))
        self._kill_at = min(self._kill_at, time.monotonic() + _ASIDE)

    def _drain(self) -> None:
        """Send what the pipes hold now, so that a rank's last words come before its end."""
        for output in list(self._outputs):
            with contextlib.suppress(BlockingIOError):
                for _ in range(_PIECES_OF_PIPE):
                    if output in self._outputs:
                        self._pass_on(output)

    def _end(self, by: str) -> None:
        self._ended_by = self._ended_by or by
        self._signal(signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + _ASIDE)

    def _signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            self._kill_at = 0.0
        elif self._rank:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._rank, number)

    def _kill(self) -> None:
        """SIGKILL to all below this process; again soon, they may have made others meanwhile."""
        for pid in _descendants(os.getpid()) if self._started and not self._gone else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._kill_at = float("inf") if self._gone else time.monotonic() + _AGAIN


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = list(children.get(pid, ()))
    for one in found:  # grows while it is walked
        found += children.get(one, ())
    return found


def _connect(addresses: Iterable[str]) -> socket.socket:
    """A connection to the launcher at the first of its addresses that answers."""
    reasons = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            return socket.create_connection((host, int(port)), timeout=_CONNECT)
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
    raise SystemExit(
        f"gradred run: {os.uname().nodename} cannot reach the launcher ({', '.join(reasons)})"
    )


def _keep(job: str, lifeline: int, prctl: Any) -> int:
    secret, *addresses = job.split()
    wire = Wire(_connect(addresses))
    rank = next(int(os.environ[name]) for name, _ in RANK_VARIABLES if name in os.environ)
    hello = {"secret": secret, "rank": rank, "host": os.uname().nodename}
    wire.send(HELLO, encode(hello))
    return _Keeper(wire, lifeline, prctl).run()


def main() -> None:
    """Entry point of a shim."""
    prctl = ctypes.CDLL(None).prctl
    lifeline, voice = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    keeper = os.fork()
    if keeper == 0:
        os.setsid()
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        os.close(voice)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        sys.exit(_keep(os.environ[JOB], lifeline, prctl))
    os.close(lifeline)

    def pass_on(number: int, frame: object) -> None:
        with contextlib.suppress(OSError):  # the keeper has ended: so does this process
            os.write(voice, bytes([number]))

    for number in _SIGNALS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    status = os.waitpid(keeper, 0)[1]
    sys.exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
