"""What carries whole messages between ranks: MPI's messages, or TCP connections.

Neither blocks, and neither has a thread: a rank moves its messages on whenever it polls.
"""

from __future__ import annotations

import collections
import contextlib
import os
import platform
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from mpi4py import MPI

from gradred import errors
from gradred._util import clock
from gradred.compression import Bytes
from gradred.errors import PeerLost, TransportError
from gradred.launch import authentication, rendezvous

Look: TypeAlias = Callable[[str], None]
"""Raises PeerLost if a rank has ended. The argument names what this rank waits for."""

Arrived: TypeAlias = tuple[int, Bytes]
"""The rank that has sent a message, and the message."""

_TO_CONNECT = 60.0  # seconds for all ranks to connect
_TO_MISS = 1.5  # seconds after an error of the MPI in which the end of a rank becomes known
_LENGTH = struct.Struct("!Q")
_RANK = struct.Struct("!I")
_READ_AT_ONCE = 1 << 20  # bytes


Transport: TypeAlias = "MpiMessages | TcpConnections"
"""Carries messages between the ranks of a communicator. Making and closing one is collective.

Only `idle` blocks, for so many seconds at most, until a message may have come. A message that was
given to `send` must not change any more. `poll` moves messages on and returns those that have
arrived completely; it raises PeerLost if the connection to a rank has ended. `pending` says whether
messages of this rank are still on their way. `close(in_order=True)`: no rank has failed, and all
close now."""


class _Transport:
    def __init__(self, comm: MPI.Intracomm) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.sent_bytes = self.received_bytes = 0
        """Bytes of all messages so far."""


class MpiMessages(_Transport):
    """MPI's non-blocking messages, on a communicator of their own."""

    def __init__(self, comm: MPI.Intracomm, look: Look) -> None:
        super().__init__(comm)
        self._comm, self._look = MPI.Intracomm(comm).Dup(), look
        self._out: list[tuple[MPI.Request, Bytes]] = []
        self._in: list[tuple[MPI.Request, int, Bytes]] = []
        self._status = MPI.Status()

    def send(self, to: int, message: Bytes) -> None:
        """Start to send a message."""
        with self._failing():
            self._out.append((self._comm.Isend([message, MPI.BYTE], to), message))
        self.sent_bytes += message.size

    def poll(self) -> list[Arrived]:
        """Move messages on, and return those that have arrived."""
        with self._failing():
            return self._poll()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Raises PeerLost for an error of the MPI that the end of a rank has caused."""
        try:
            yield
        except MPI.Exception as error:
            end = clock.now() + _TO_MISS
            while clock.now() < end:
                self._look("a training step, for a message")
                time.sleep(0.02)
            found = " ".join(str(error).split())
            raise TransportError("a message", found, "See the other ranks") from error

    def _poll(self) -> list[Arrived]:
        self._out = [one for one in self._out if not one[0].Test()]
        status = self._status
        while found := self._comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):  # codespell:ignore
            message = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._in.append((found.Irecv([message, MPI.BYTE]), status.Get_source(), message))
        ended = [one[0].Test() for one in self._in]
        arrived = [one[1:] for one, done in zip(self._in, ended, strict=True) if done]
        self._in = [one for one, done in zip(self._in, ended, strict=True) if not done]
        self.received_bytes += sum(message.size for _, message in arrived)
        return arrived

    def idle(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def pending(self) -> bool:
        """Whether messages of this rank are still on their way."""
        return bool(self._out)

    def close(self, *, in_order: bool) -> None:
        """Free the communicator, if no rank has failed."""
        if in_order:
            self._comm.Free()


class _Link:
    """The connection to one rank: what is to be sent, and the message that is arriving."""

    def __init__(self, connection: socket.socket, rank: int) -> None:
        authentication.keep_alive(connection)
        # A rank that computes for long reads nothing meanwhile, and is not lost.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        connection.setblocking(False)
        self.connection, self.rank = connection, rank
        self.out: collections.deque[memoryview] = collections.deque()
        self._length = bytearray(_LENGTH.size)
        self._body: Bytes | None = None
        self._into, self._got = memoryview(self._length), 0

    def flush(self) -> None:
        """Send as much as the connection takes."""
        with contextlib.suppress(BlockingIOError):
            while self.out:
                rest = self.out[0][self.connection.send(self.out[0]) :]
                if rest:
                    self.out[0] = rest
                else:
                    self.out.popleft()

    def read(self) -> list[Bytes]:
        """Read what has come; returns complete messages. Raises ConnectionError at its end."""
        complete: list[Bytes] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                end = min(len(self._into), self._got + _READ_AT_ONCE)
                count = self.connection.recv_into(self._into[self._got : end])
                if count == 0:
                    raise ConnectionResetError("it was closed")
                self._got += count
                if self._got == len(self._into):
                    self._turn(complete)
        return complete

    def _turn(self, complete: list[Bytes]) -> None:
        """Go on from the length of a message to its bytes, or to the next message."""
        if self._body is None:
            self._body = np.empty(_LENGTH.unpack(self._length)[0], np.uint8)
            self._into = self._body.data
        else:
            complete.append(self._body)
            self._body, self._into = None, memoryview(self._length)
        self._got = 0


class TcpConnections(_Transport):
    """A TCP connection between each two ranks; both ends prove that they know the job's secret.

    Rank 0 draws the secret, and the ranks get it by MPI. Later messages are neither encrypted nor
    signed (`gradred.launch.authentication`).
    """

    def __init__(self, comm: MPI.Intracomm, look: Look) -> None:
        super().__init__(comm)
        self._links: dict[int, _Link] = {}
        self._selector = selectors.DefaultSelector()
        secret: bytes = comm.bcast(os.urandom(32))
        here = platform.node()
        others = sorted({*comm.allgather(here)} - {here})
        server, addresses = rendezvous.listen(others, comm.size)
        everywhere: list[list[str]] = comm.allgather(addresses)
        deadline = clock.now() + _TO_CONNECT
        with server:
            for peer in range(self.rank):
                self._add(peer, self._connected(secret, peer, everywhere[peer], deadline))
            self._admit(server, secret, look, deadline)

    def _connected(
        self, secret: bytes, peer: int, addresses: list[str], deadline: float
    ) -> socket.socket:
        try:
            connection = authentication.connect_to_any(secret, addresses, deadline)
            connection.sendall(_RANK.pack(self.rank))
        except OSError as error:
            found = f"it answers at none of its addresses ({error})"
            raise TransportError(f"a connection to rank {peer}", found, "See its errors") from error
        return connection

    def _admit(self, server: socket.socket, secret: bytes, look: Look, deadline: float) -> None:
        """Accept connections until each higher rank has proved itself; the others are closed."""
        server.settimeout(0.05)
        came: collections.deque[tuple[int, socket.socket]] = collections.deque()
        while len(self._links) < self.size - 1:
            while came:
                self._add(*came.popleft())
            with contextlib.suppress(TimeoutError):
                caller = server.accept()[0]
                threading.Thread(target=_prove, args=(caller, secret, came), daemon=True).start()
            look("a training step, for the connections of other ranks")
            if clock.now() > deadline:
                found = f"only {len(self._links)} of {self.size - 1} have come"
                raise errors.TimeoutError("connections of ranks", found, "See the other ranks")

    def _add(self, rank: int, connection: socket.socket) -> None:
        if rank in self._links or not 0 <= rank < self.size:
            connection.close()
            return
        self._links[rank] = _Link(connection, rank)
        self._selector.register(connection, selectors.EVENT_READ, self._links[rank])

    def send(self, to: int, message: Bytes) -> None:
        """Start to send a message."""
        link = self._links[to]
        link.out += [memoryview(_LENGTH.pack(message.size)), message.data]
        self.sent_bytes += message.size
        with _losing(link.rank):
            link.flush()

    def poll(self) -> list[Arrived]:
        """Move messages on, and return those that have arrived."""
        arrived: list[Arrived] = []
        for link in self._links.values():
            with _losing(link.rank):
                link.flush()
        for key, _ in self._selector.select(0):
            link = key.data
            with _losing(link.rank):
                arrived += [(link.rank, message) for message in link.read()]
        self.received_bytes += sum(message.size for _, message in arrived)
        return arrived

    def idle(self, seconds: float) -> None:
        """Wait until a message has come, for so long at most."""
        self._selector.select(min(seconds, 0.001) if self.pending() else seconds)

    def pending(self) -> bool:
        """Whether messages of this rank are still on their way."""
        return any(link.out for link in self._links.values())

    def close(self, *, in_order: bool) -> None:
        """Close the connections."""
        self._selector.close()
        for link in self._links.values():
            link.connection.close()


@contextlib.contextmanager
def _losing(rank: int) -> Iterator[None]:
    """Raises PeerLost if the connection to a rank ends inside."""
    try:
        yield
    except OSError as error:
        found = f"the connection to rank {rank} has ended ({error})"
        raise PeerLost("a message", found, "See that rank's last lines") from error


def _prove(
    caller: socket.socket, secret: bytes, came: collections.deque[tuple[int, socket.socket]]
) -> None:
    """Answer a caller, and add it to `came` if it proves that it knows the secret."""
    try:
        until = clock.now() + authentication.PROVE
        challenge = authentication.read(caller, authentication.CHALLENGE, until)
        words, expected = authentication.answer(secret, challenge)
        caller.sendall(words)
        proof = authentication.read(caller, authentication.PROOF, until)
        if not authentication.is_expected(proof, expected):
            raise ConnectionRefusedError
        number = authentication.read(caller, _RANK.size, until)
        came.append((_RANK.unpack(number)[0], caller))
    except OSError:
        caller.close()


CLASSES: dict[str, type[MpiMessages] | type[TcpConnections]] = {
    "mpi": MpiMessages,
    "tcp": TcpConnections,
}
"""The transports, by the names that the table of schemes has."""
