"""The rendezvous server of a job, to which supervisors connect and authenticate themselves."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import selectors
import socket
from collections.abc import Callable, Sequence

from gradred._util import clock
from gradred.errors import Error
from gradred.launch import authentication, protocol

_MORE_CALLERS = 64  # unproved callers allowed beyond the number of ranks; then the first is closed
_BACKLOG = 128  # callers that the kernel queues; further ones try again a second later
_LARGEST_HELLO = 4096  # bytes


class _Caller(authentication.Caller):
    """A caller that has not authenticated itself yet, or not named its rank."""

    channel: protocol.ControlChannel | None = None
    """The channel, once it has proved that it knows the secret."""


class RendezvousServer:
    """Admits callers that know the secret; closes other connections without revealing anything.

    Args:
        remote: the other hosts, which have to reach this one; empty if all ranks are here.
        ranks: the number of ranks of the job.
        selector: the selector in which the sockets are registered.
        admit: takes a supervisor's channel, the number of its rank and the name of its host.
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
        self._server, self._addresses = listen(remote, ranks)
        self._spare = os.dup(self._server.fileno())
        self._open = True
        selector.register(self._server, selectors.EVENT_READ, self._accept)

    @property
    def key(self) -> str:
        """The value of the variable `protocol.JOB`, which a launch proxy needs to connect."""
        return " ".join([self._secret, *self._addresses])

    def turn_away_late(self) -> None:
        """Close the connections of callers that take too long."""
        now = clock.now()
        for caller in list(self._callers):
            if caller.until > now:
                break
            self._turn_away(caller)

    def close(self) -> None:
        """Stop admitting callers."""
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
        for _one in range(_MORE_CALLERS):  # then other events get their turn
            if not self._open or not self._accept_one():
                return

    def _accept_one(self) -> bool:
        """Accept a caller; False if none waits."""
        try:
            connection = self._server.accept()[0]
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        except OSError as error:  # most often no descriptor is left
            # Stop listening: the next accept, while the job is being ended, would fail as well.
            # Callers in the queue stay there: if they were closed, each would print a complaint.
            self._stop_listening()  # frees a descriptor, which ending the job needs
            found = f"the connection of a rank cannot be accepted ({error.strerror})"
            remedy = "Allow more open files (ulimit -n)"
            raise Error(f"starting {self._ranks} ranks", found, remedy) from error
        connection.setblocking(False)
        caller = _Caller(connection, self._secret.encode())
        self._callers[caller] = None
        self._selector.register(caller, selectors.EVENT_READ, functools.partial(self._hear, caller))
        if len(self._callers) > self._ranks + _MORE_CALLERS:
            self._turn_away(next(iter(self._callers)))  # a supervisor of this job connects again
        return True

    def _turn_away(self, caller: _Caller) -> None:
        self._forget(caller)
        caller.connection.close()

    def _forget(self, caller: _Caller) -> None:
        del self._callers[caller]
        self._selector.unregister(caller)

    def _hear(self, caller: _Caller, _: int) -> None:
        if caller not in self._callers:  # closed since the event
            return
        try:
            going_on = self._hear_hello(caller) if caller.channel else caller.hear()
        except OSError:
            going_on = False
        if not going_on:
            self._turn_away(caller)
        elif caller.is_proved and caller.channel is None:
            caller.channel = protocol.ControlChannel(caller.connection, _LARGEST_HELLO)

    def _hear_hello(self, caller: _Caller) -> bool:
        channel = caller.channel
        assert channel is not None
        messages = channel.receive()
        if not messages:
            return channel.lost is None
        caller_is = self._introduced(messages[0])
        if caller_is is None or len(messages) > 1:  # a supervisor sends no more before its START
            return False
        channel.largest = protocol.LARGEST
        self._forget(caller)
        self._admit(channel, *caller_is)
        return True

    def _introduced(self, message: protocol.Message) -> tuple[int, str] | None:
        """Return the rank and host in a supervisor's HELLO; None for any other message."""
        kind, payload = message
        if kind != protocol.HELLO:
            return None
        with contextlib.suppress(ValueError, KeyError):
            hello = protocol.decode(payload)
            number, host = hello["rank"], hello["host"]
            if type(number) is int and isinstance(host, str) and 0 <= number < self._ranks:
                return number, host
        return None


def listen(remote: Sequence[str], ranks: int) -> tuple[socket.socket, list[str]]:
    """Open a listening socket; also return its addresses for the ranks' hosts."""
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
    # Room for all that a supervisor may send while this process reads nothing, as after Ctrl-Z.
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * protocol.WINDOW)
    port = server.getsockname()[1]
    return server, [f"{name}:{port}" for name in dict.fromkeys(names)]


def _address_towards(name: str) -> str | None:
    """Return this host's address on the route to another host; None if there is no route."""
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return None
