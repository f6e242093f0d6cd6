"""The rendezvous server of a job: supervisors connect to it, and prove that they are of the job."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import secrets
import selectors
import socket
from collections.abc import Callable, Sequence

from gradred._util import clock
from gradred.errors import Error, explain
from gradred.launch import authentication, protocol

_TO_PROVE = 5.0  # seconds for a caller to prove that it is a supervisor of this job, and whose
_MORE_CALLERS = 64  # than there are ranks; one more, and the first of them has to go
_BACKLOG = 128  # callers that the kernel keeps waiting; it makes more come again a second later
_LARGEST_HELLO = 4096  # bytes


@dataclasses.dataclass(eq=False)
class _Caller:
    """One who has not said yet, or not proved, who it is."""

    connection: socket.socket
    until: float
    heard: bytes = b""
    expected: bytes | None = None
    """The proof, once its challenge was answered."""
    channel: protocol.ControlChannel | None = None
    """Once it has proved to know the secret."""

    def fileno(self) -> int:
        return self.connection.fileno()


class RendezvousServer:
    """Admits callers that know the secret; all others are turned away, and learn nothing of it.

    Args:
        remote: hosts that have to reach this one; none if all ranks are here.
        ranks: of the job.
        selector: where the sockets are registered.
        admit: takes the channel to a supervisor, the number of its rank and the name of its host.
    """

    def __init__(
        self,
        remote: Sequence[str],
        ranks: int,
        selector: selectors.BaseSelector,
        admit: Callable[[protocol.ControlChannel, int, str], None],
    ) -> None:
        self._ranks = ranks
        self._selector = selector
        self._admit = admit
        self._secret = secrets.token_hex(16)
        self._callers: dict[_Caller, None] = {}  # in the order in which they came
        self._server, self._addresses = _listen(remote, ranks)
        self._spare = os.dup(self._server.fileno())
        self._open = True
        selector.register(self._server, selectors.EVENT_READ, self._accept)

    @property
    def key(self) -> str:
        """What a launch proxy has to know, as the variable `protocol.JOB` holds it."""
        return " ".join([self._secret, *self._addresses])

    def turn_away_late(self) -> None:
        """Close the connections of those who take too long."""
        now = clock.now()
        for caller in list(self._callers):
            if caller.until > now:
                break
            self._turn_away(caller)

    def close(self) -> None:
        """Admit nobody any more."""
        self._stop_listening()
        self._server.close()
        for caller in list(self._callers):
            self._turn_away(caller)

    def _stop_listening(self) -> None:
        if self._open:
            self._open = False
            self._selector.unregister(self._server)
            os.close(self._spare)

    def _accept(self, _: int) -> None:
        for _one in range(_MORE_CALLERS):  # and then others' turn
            if not self._open or not self._accept_one():
                return

    def _accept_one(self) -> bool:
        """False if nobody waits."""
        try:
            connection = self._server.accept()[0]
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        except OSError as error:  # most often: no descriptor is left
            # Else the next look at it, while the job is being ended, fails alike. Callers that
            # wait until then: turned away, each would complain.
            self._stop_listening()  # to end the job takes one descriptor
            found = f"the connection of a rank cannot be accepted ({error.strerror})"
            remedy = "Allow more open files (ulimit -n)"
            raise Error(explain(f"starting {self._ranks} ranks", found, remedy)) from error
        connection.setblocking(False)
        caller = _Caller(connection, clock.now() + _TO_PROVE)
        self._callers[caller] = None
        self._selector.register(caller, selectors.EVENT_READ, functools.partial(self._hear, caller))
        if len(self._callers) > self._ranks + _MORE_CALLERS:
            self._turn_away(next(iter(self._callers)))  # a supervisor of this job comes again
        return True

    def _turn_away(self, caller: _Caller) -> None:
        self._forget(caller)
        caller.connection.close()

    def _forget(self, caller: _Caller) -> None:
        del self._callers[caller]
        self._selector.unregister(caller)

    def _hear(self, caller: _Caller, _: int) -> None:
        if caller not in self._callers:  # turned away since the event
            return
        try:
            going_on = self._hear_hello(caller) if caller.channel else self._hear_proof(caller)
        except OSError:
            going_on = False
        if not going_on:
            self._turn_away(caller)

    def _hear_proof(self, caller: _Caller) -> bool:
        """Read what is of a fixed length, and no byte more; False to turn the caller away."""
        wanted = authentication.CHALLENGE if caller.expected is None else authentication.PROOF
        try:
            data = caller.connection.recv(wanted - len(caller.heard))
        except BlockingIOError:
            return True
        caller.heard += data
        if len(caller.heard) < wanted:
            return bool(data)
        heard, caller.heard = caller.heard, b""
        if caller.expected is None:
            words, caller.expected = authentication.answer(self._secret.encode(), heard)
            return caller.connection.send(words) == len(words)  # into a buffer that is empty
        if not authentication.is_expected(heard, caller.expected):
            return False
        caller.channel = protocol.ControlChannel(caller.connection, _LARGEST_HELLO)
        return True

    def _hear_hello(self, caller: _Caller) -> bool:
        channel = caller.channel
        assert channel is not None
        messages = channel.receive()
        if not messages:
            return channel.lost is None
        caller_is = self._introduced(messages[0])
        if caller_is is None or len(messages) > 1:  # a supervisor waits for its orders
            return False
        channel.largest = protocol.LARGEST
        self._forget(caller)
        self._admit(channel, *caller_is)
        return True

    def _introduced(self, message: protocol.Message) -> tuple[int, str] | None:
        """The rank and host of a supervisor of this job; None for what says neither."""
        kind, payload = message
        if kind != protocol.HELLO:
            return None
        with contextlib.suppress(ValueError, KeyError):
            hello = protocol.decode(payload)
            number, host = hello["rank"], hello["host"]
            if type(number) is int and isinstance(host, str) and 0 <= number < self._ranks:
                return number, host
        return None


def _listen(remote: Sequence[str], ranks: int) -> tuple[socket.socket, list[str]]:
    """A listening socket, and the addresses by which the ranks' hosts may reach it."""
    backlog = max(ranks, _BACKLOG)
    if not remote:
        server = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        names = ["127.0.0.1"]
    else:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=backlog)
        names = [*filter(None, map(_address_towards, remote)), socket.gethostname()]
    server.setblocking(False)
    # What a supervisor may send has room although nobody reads for a while, as after Ctrl-Z.
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * protocol.WINDOW)
    port = server.getsockname()[1]
    return server, [f"{name}:{port}" for name in dict.fromkeys(names)]


def _address_towards(name: str) -> str | None:
    """This host's address on the way to another; nothing is sent. None if the name says nothing."""
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return None
