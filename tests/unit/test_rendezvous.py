"""A rendezvous server in one process: which callers it admits, and what others can do to it."""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stepped import SteppedClock

from gradred._util import clock
from gradred.launch import authentication, protocol, rendezvous

pytestmark = pytest.mark.timeout(60)
RANKS = 3


class Opened:
    """A server, and the channels that it has admitted."""

    def __init__(self) -> None:
        self.selector = selectors.PollSelector()
        self.admitted: list[tuple[int, str]] = []
        self.channels: list[protocol.ControlChannel] = []
        self.server = rendezvous.RendezvousServer((), RANKS, self.selector, self.admit)
        self.secret, self.address = self.server.key.split()

    def admit(self, channel: protocol.ControlChannel, number: int, host: str) -> None:
        self.admitted.append((number, host))
        self.channels.append(channel)

    def connect(self) -> socket.socket:
        host, port = self.address.split(":")
        return socket.create_connection((host, int(port)), timeout=20)

    def turn(self, seconds: float = 0.0) -> None:
        for key, mask in self.selector.select(seconds):
            key.data(mask)
        self.server.turn_away_late()

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            self.turn(0.01)

    @property
    def callers(self) -> int:
        return len(self.server._callers)

    def known(self) -> socket.socket:
        """A connection whose caller has proved that it knows the secret."""
        connection = self.connect()
        deadline = clock.now() + 20
        proving = threading.Thread(
            target=authentication.convince, args=(connection, self.secret.encode(), deadline)
        )
        proving.start()
        self.until(lambda: not proving.is_alive())
        return connection

    def lets_in(self, number: int) -> None:
        before = len(self.admitted)
        supervisor = protocol.ControlChannel(self.known())
        supervisor.send(protocol.HELLO, protocol.encode({"rank": number, "host": "here"}))
        self.until(lambda: len(self.admitted) > before)
        assert self.admitted[-1] == (number, "here")
        # larger than callers may send before they are admitted
        self.channels[-1].send(protocol.START, b"x" * 100_000)
        supervisor.send(protocol.STDOUT, b"y" * 100_000)
        self.until(lambda: supervisor.receive())
        self.until(lambda: self.channels[-1].receive())
        supervisor.close()


@pytest.fixture
def opened() -> Iterator[Opened]:
    made = Opened()
    yield made
    made.server.close()
    for channel in made.channels:
        channel.close()
    assert not made.selector.get_map()
    made.selector.close()


def test_supervisors_are_admitted_and_others_with_any_bytes_are_not(opened: Opened) -> None:
    chance = random.Random(7)
    header = b"h" + (100_000).to_bytes(4, "big")
    words = [b"", b"\0", b"GET / HTTP/1.0\r\n\r\n", header + b"[" * 100_000, b"h" + bytes(4)]
    words += [chance.randbytes(chance.choice([1, 31, 32, 33, 63, 64, 65, 500])) for _ in range(60)]
    others = []
    for word in words:
        other = opened.connect()
        others.append(other)
        other.setblocking(False)
        while word:
            piece, word = word[: chance.choice([1, 7, 100, 10**6])], word[100:]
            try:
                other.send(piece)
            except OSError:  # the server has disconnected it
                break
            opened.turn()
        if chance.random() < 0.3:
            other.close()
    opened.lets_in(1)
    for other in others:
        other.close()
    opened.until(lambda: opened.callers == 0)
    assert [number for number, _ in opened.admitted] == [1]


HELLOS = {
    "rank beyond the job": {"rank": RANKS, "host": "here"},
    "negative rank": {"rank": -1, "host": "here"},
    "rank that is a text": {"rank": "1", "host": "here"},
    "rank that is true": {"rank": True, "host": "here"},
    "host that is a list": {"rank": 1, "host": ["here"]},
    "no host": {"rank": 1},
}
PAYLOADS = {name: protocol.encode(values) for name, values in HELLOS.items()}
PAYLOADS |= {
    "list": b"[1]",
    "number": b"3",
    "nothing": b"",
    "no JSON": b"\xff\xfe",
    "lists in lists": b"[" * 4000,
    "long": b" " * 5000,
    "very long": b" " * 200_000,
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_whoever_knows_the_secret_and_talks_nonsense_is_turned_away(
    opened: Opened, name: str
) -> None:
    caller = protocol.ControlChannel(opened.known())
    caller.send(protocol.HELLO, PAYLOADS[name])
    opened.until(lambda: opened.callers == 0)
    assert not opened.admitted
    opened.lets_in(0)
    caller.close()


def test_values_in_too_many_others_are_no_values() -> None:
    for payload in (b"[" * 100_000, b'{"a":' * 100_000, b"[]"):
        with pytest.raises(ValueError, match="values"):
            protocol.decode(payload)


def test_proof_for_one_side_does_not_serve_the_other(opened: Opened) -> None:
    """A caller could let the server prove itself, and return that proof as its own."""
    first = opened.connect()
    first.sendall(bytes(authentication.CHALLENGE))
    first.setblocking(False)
    said = b""

    def has_answer() -> bool:
        nonlocal said
        try:
            said += first.recv(100)
        except BlockingIOError:
            return False
        return True

    opened.until(has_answer)
    assert len(said) == authentication.CHALLENGE + authentication.PROOF
    assert opened.secret.encode() not in said
    first.sendall(said[authentication.CHALLENGE :])
    opened.until(lambda: opened.callers == 0)
    assert not opened.admitted
    first.close()


def test_slow_and_silent_callers_have_a_deadline(opened: Opened, clock: SteppedClock) -> None:
    silent, slow = opened.connect(), opened.connect()
    opened.until(lambda: opened.callers == 2)
    clock.step(authentication.PROVE / 3)
    slow.sendall(b"s")
    opened.turn(0.1)
    assert opened.callers == 2
    clock.step(authentication.PROVE)
    opened.turn()
    assert opened.callers == 0
    for caller in (silent, slow):
        caller.close()
    opened.lets_in(2)


def test_crowd_of_callers_leaves_room_for_supervisors(opened: Opened) -> None:
    crowd = []
    for _ in range(400):
        crowd.append(opened.connect())
        opened.turn()
    most = RANKS + rendezvous._MORE_CALLERS
    opened.until(lambda: opened.callers == most)
    opened.lets_in(0)
    for caller in crowd:
        caller.close()
    opened.until(lambda: opened.callers == 0)
