"""The PMI server of ranks that no mpiexec has started: through it the MPI of each finds the others.

Rank 0 starts it as a process of its own, `python -I -S -c`, because MPI_Init holds a rank until all
ranks have come. It speaks the protocol that MPICH and its family know as PMI-1, as far as MPI_Init
and MPI_Finalize use it: lines of `key=value` pairs.

Each rank makes two connections. Each begins with a proof that the rank knows the job's secret
(authentication.py) and a line that says what the connection is for:

    control RANK HOST   the rank's own, as long as its process lives
    pmi RANK            MPI's, from MPI_Init to MPI_Finalize

On a control connection the rank sends

    begun               its MPI_Init has returned
    report TEXT         a communicator of this rank has failed so
    leaving             it is in MPI_Finalize

and the server

    lost RANK           this rank has ended before all had begun
    late RANK,...       these have not come, or not begun, in time
    all                 all ranks have begun
    failed RANK HOST REPORT
                        this rank has failed: what it has reported; or nothing, if it has ended
                        without MPI_Finalize and without a report

The server ends when all ranks have closed their connections.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import selectors
import socket
import sys
import time

from gradred._util import clock
from gradred.launch import authentication

TYPE_CHECKING = False
if TYPE_CHECKING:  # see protocol
    from collections.abc import Callable, Mapping

_NAP = 0.05  # seconds until the next caller is accepted after one could not be
_TO_COME = 5.0  # seconds for ranks to come after a failure: they learn of it
_LONGEST_LINE = 8192  # bytes
_MORE_CALLERS = 64  # than there are connections of ranks; one more, and the first has to go
_MAXES = "kvsname_max=256 keylen_max=64 vallen_max=1024"


class _Connection(authentication.Caller):
    """One that a caller has made."""

    kind, rank, host = "", -1, ""
    received = b""

    def send(self, line: str) -> None:
        """Send a line; a rank that has gone is noticed when its connection is read."""
        with contextlib.suppress(OSError):
            self.connection.sendall(line.encode() + b"\n")


class Server:
    """Serves the ranks of one job.

    Args:
        listener: a listening socket.
        secret: of the job.
        size: the number of ranks.
        mapping: which ranks share a host, as PMI_process_mapping says it.
        limit: seconds until all ranks have to have begun.
    """

    def __init__(
        self, listener: socket.socket, secret: bytes, size: int, mapping: str, limit: float
    ) -> None:
        self._listener, self._secret, self._size = listener, secret, size
        self._until = clock.now() + limit
        self._name = f"gradred_{os.urandom(8).hex()}"  # MPICH names shared memory by it
        self._values = {"PMI_process_mapping": mapping}
        self._selector = selectors.DefaultSelector()
        self._connections: dict[_Connection, None] = {}  # in the order in which they came
        self._in_barrier: list[_Connection] = []
        self._known: set[int] = set()  # ranks that have connected
        self._came: set[int] = set()  # ranks that are in MPI_Init, or have been
        self._begun: set[int] = set()
        self._known_to_end: set[int] = set()  # they leave, or their failure is known
        self._failure = ""  # the failure before all had begun, which is sent to the ranks
        self._failed_at = 0.0
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def run(self) -> None:
        """Serve until all ranks have left."""
        while not self._is_done():
            for key, _ in self._selector.select(None if self._is_quiet() else clock.nap(1.0)):
                key.data()
            self._look_at_clock()

    def _is_quiet(self) -> bool:
        """Whether no time limit is running."""
        begun = len(self._begun) == self._size and not self._failure
        return begun and all(one.is_proved for one in self._connections)

    def _is_done(self) -> bool:
        any_here = any(one.is_proved for one in self._connections)
        if not self._failure:
            return len(self._begun) == self._size and not any_here
        # Without MPI's connection a rank in MPI_Init crashes, so the server outlives all of them.
        all_know = len(self._known) == self._size
        return not any_here and (all_know or clock.now() - self._failed_at > _TO_COME)

    def _look_at_clock(self) -> None:
        now = clock.now()
        for one in list(self._connections):
            if not one.is_proved and one.until < now:
                self._drop(one)
        if not self._failure and len(self._begun) < self._size and now > self._until:
            everyone = {*range(self._size)}
            late = sorted(everyone - self._came or everyone - self._begun)
            self._fail(f"late {','.join(map(str, late))}")

    def _fail(self, line: str) -> None:
        self._failure, self._failed_at = line, clock.now()
        _leave_stderr()
        for one in self._of_kind("control"):
            one.send(line)

    def _of_kind(self, kind: str) -> list[_Connection]:
        return [one for one in self._connections if one.kind == kind]

    # ---- connections ---------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            made = self._listener.accept()[0]
        except BlockingIOError:
            return
        except OSError:  # most often: no descriptor is left
            time.sleep(_NAP)
            return
        made.setblocking(False)
        authentication.keep_alive(made)
        one = _Connection(made, self._secret)
        self._connections[one] = None
        self._selector.register(one, selectors.EVENT_READ, functools.partial(self._read, one))
        strangers = [other for other in self._connections if not other.is_proved]
        if len(strangers) > 2 * self._size + _MORE_CALLERS:
            self._drop(strangers[0])

    def _drop(self, one: _Connection) -> None:
        if one not in self._connections:
            return
        del self._connections[one]
        if one in self._in_barrier:
            self._in_barrier.remove(one)
        self._selector.unregister(one)
        one.connection.close()
        if not one.kind or self._failure:
            return
        if one.rank not in self._begun:
            self._fail(f"lost {one.rank}")
        elif one.kind == "control":
            self._announce_failed(one, "")

    def _announce_failed(self, one: _Connection, report: str) -> None:
        """Tell the others that a rank has failed, once."""
        if one.rank in self._known_to_end:
            return
        self._known_to_end.add(one.rank)
        for other in self._of_kind("control"):
            if other is not one:
                other.send(f"failed {one.rank} {one.host} {report}")

    def _read(self, one: _Connection) -> None:
        if one not in self._connections:  # dropped since the event
            return
        try:
            going_on = self._take_lines(one) if one.is_proved else one.hear()
        except OSError:
            going_on = False
        if not going_on:
            self._drop(one)

    def _take_lines(self, one: _Connection) -> bool:
        """Return False to drop the connection, as `_take_line` does."""
        try:
            data = one.connection.recv(_LONGEST_LINE)
        except BlockingIOError:
            return True
        *lines, one.received = (one.received + data).split(b"\n")
        for line in lines:
            if not self._take_line(one, line.decode(errors="replace")):
                return False
        return bool(data) and len(one.received) < _LONGEST_LINE

    def _take_line(self, one: _Connection, line: str) -> bool:
        """Return False to drop the connection."""
        if not one.kind:
            kind, rank, host = (*line.split(" ", 2), "", "")[:3]
            if kind not in ("control", "pmi") or not rank.isdecimal() or int(rank) >= self._size:
                return False
            one.kind, one.rank, one.host = kind, int(rank), host
            if kind == "control":
                self._known.add(one.rank)
            if self._failure and kind == "control":
                one.send(self._failure)
        elif one.kind == "pmi":
            return self._take_pmi(one, line)
        else:
            self._take_news(one, line)
        return True

    def _take_news(self, one: _Connection, line: str) -> None:
        word, _, text = line.partition(" ")
        if word == "begun" and not self._failure:
            self._begun.add(one.rank)
            if len(self._begun) == self._size:
                self._stop_listening()
                _leave_stderr()
                for control in self._of_kind("control"):
                    control.send("all")
        elif word == "report":
            self._announce_failed(one, text)
        elif word == "leaving":
            self._known_to_end.add(one.rank)

    def _stop_listening(self) -> None:
        self._selector.unregister(self._listener)
        self._listener.close()

    # ---- PMI-1 ---------------------------------------------------------------------------------

    def _take_pmi(self, one: _Connection, line: str) -> bool:
        """Return False to drop the connection."""
        self._came.add(one.rank)
        command, fields = _parsed(line)
        if command == "barrier_in":
            self._in_barrier.append(one)
            if len(self._in_barrier) == self._size and not self._failure:
                for each in self._in_barrier:
                    each.send("cmd=barrier_out rc=0")
                self._in_barrier.clear()
            return True
        if command == "abort":  # the rank's MPI is about to end its process
            return False
        answer = _ANSWERS.get(command)
        one.send(answer(self, fields) if answer else f"cmd={command}_result rc=-1 msg=unknown")
        return True

    def name(self, _fields: Mapping[str, str]) -> str:
        """The answer to get_my_kvsname."""
        return f"cmd=my_kvsname kvsname={self._name} rc=0"

    def universe(self, _fields: Mapping[str, str]) -> str:
        """The answer to get_universe_size."""
        return f"cmd=universe_size size={self._size} rc=0"

    def put(self, fields: Mapping[str, str]) -> str:
        """The answer to put."""
        self._values[fields.get("key", "")] = fields.get("value", "")
        return "cmd=put_result rc=0 msg=success"

    def get(self, fields: Mapping[str, str]) -> str:
        """The answer to get."""
        value = self._values.get(fields.get("key", ""))
        if value is None:
            return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
        return f"cmd=get_result rc=0 msg=success value={value}"


def _leave_stderr() -> None:
    """Close rank 0's standard error, which others may read to its end."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)


def _parsed(line: str) -> tuple[str, dict[str, str]]:
    """The command of a line, and its fields; the value of a put may contain `=`."""
    fields = dict(part.split("=", 1) for part in line.split(" ") if "=" in part)
    return fields.pop("cmd", ""), fields


_ANSWERS: dict[str, Callable[[Server, Mapping[str, str]], str]] = {
    "init": lambda *_: "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": lambda *_: f"cmd=maxes {_MAXES} rc=0",
    "get_appnum": lambda *_: "cmd=appnum appnum=0 rc=0",
    "get_my_kvsname": Server.name,
    "get_universe_size": Server.universe,
    "put": Server.put,
    "get": Server.get,
    "finalize": lambda *_: "cmd=finalize_ack rc=0",
}


def main() -> None:
    """Serve what the first line of standard input describes, on the listening socket given there.

    The line is a JSON object: descriptor, secret, size, mapping, limit.
    """
    asked = json.loads(sys.stdin.readline())
    sys.stdin.close()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    Server(
        socket.socket(fileno=asked["descriptor"]),
        asked["secret"].encode(),
        asked["size"],
        asked["mapping"],
        asked["limit"],
    ).run()
