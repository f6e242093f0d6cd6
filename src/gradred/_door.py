"""Where the keepers of a job's ranks come in: a listening socket, and a secret to know them by."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import selectors
import socket
from collections.abc import Callable, Sequence

from gradred import _wire
from gradred.errors import Error, explain


class Door:
    """Lets in whoever has the key; all others are turned away.

    Args:
        remote: hosts that have to reach this one; none if all ranks are here.
        ranks: of the job.
        selector: where the sockets are registered.
        admit: takes the connection of a keeper, the number of its rank and the name of its host.
    """

    def __init__(
        self,
        remote: Sequence[str],
        ranks: int,
        selector: selectors.BaseSelector,
        admit: Callable[[_wire.Wire, int, str], None],
    ) -> None:
        self._ranks = ranks
        self._selector = selector
        self._admit = admit
        self._secret = secrets.token_hex(16)
        self._callers: set[_wire.Wire] = set()
        self._server, self._addresses = _listen(remote, ranks)
        self._spare = os.dup(self._server.fileno())
        selector.register(self._server, selectors.EVENT_READ, self._accept)

    @property
    def key(self) -> str:
        """What a shim has to know, as the variable `_wire.JOB` holds it."""
        return " ".join([self._secret, *self._addresses])

    def close(self) -> None:
        """Let nobody in any more."""
        if self._server in self._selector.get_map():
            self._selector.unregister(self._server)
            os.close(self._spare)
        self._server.close()
        for wire in self._callers:
            self._selector.unregister(wire)
            wire.close()

    def _accept(self, _: int) -> None:
        try:
            wire = _wire.Wire(self._server.accept()[0])
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # most often: no descriptor is left
            # Else the next look at it, while the job is being ended, fails alike. Those that knock
            # wait until then: turned away, each would complain.
            self._selector.unregister(self._server)
            os.close(self._spare)  # to end the job takes one descriptor
            found = f"the connection of a rank cannot be accepted ({error.strerror})"
            remedy = "Allow more open files (ulimit -n)"
            raise Error(explain(f"starting {self._ranks} ranks", found, remedy)) from error
        self._callers.add(wire)
        hear = functools.partial(self._hear, wire)
        self._selector.register(wire, selectors.EVENT_READ, hear)

    def _hear(self, wire: _wire.Wire, _: int) -> None:
        messages = wire.receive()
        if not messages and wire.lost is None:
            return
        self._callers.discard(wire)
        self._selector.unregister(wire)
        keeper = self._introduced(messages[0]) if messages else None
        if keeper is None:
            wire.close()
        else:
            self._admit(wire, *keeper)

    def _introduced(self, message: _wire.Message) -> tuple[int, str] | None:
        """The rank and host of a keeper of this job; None for somebody else."""
        kind, payload = message
        if kind != _wire.HELLO:
            return None
        with contextlib.suppress(ValueError, KeyError, TypeError):
            hello = _wire.decode(payload)
            number, host, secret = hello["rank"], hello["host"], hello["secret"]
            if secrets.compare_digest(secret, self._secret) and 0 <= number < self._ranks:
                return number, host
        return None


def _listen(remote: Sequence[str], ranks: int) -> tuple[socket.socket, list[str]]:
    """A listening socket, and the addresses by which the ranks' hosts may reach it."""
    if not remote:
        server = socket.create_server(("127.0.0.1", 0), backlog=ranks)
        names = ["127.0.0.1"]
    else:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        server = socket.create_server(
            ("", 0), family=family, dualstack_ipv6=dual, backlog=max(ranks, 128)
        )
        names = [*filter(None, map(_address_towards, remote)), socket.gethostname()]
    server.setblocking(False)
    # What a keeper may send has room although nobody reads for a while, as after Ctrl-Z.
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _wire.WINDOW)
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
