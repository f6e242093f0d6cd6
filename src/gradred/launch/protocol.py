"""The control channel: messages between `gradred run` and the supervisors of its ranks.

This module and the others that a launch proxy and a supervisor consist of import only each other
and what little they need of the standard library: they are loaded once per rank.
"""

from __future__ import annotations

import json
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` costs as much time as the rest together
    from collections.abc import Iterable, Mapping
    from typing import Any

# The variable that tells a launch proxy where to connect: a secret, then addresses, separated by
# spaces.
JOB = "_GRADRED_JOB"

# Kinds of message. From a supervisor: who it is, output, how the rank ended, that nothing of it is
# left, that more input is welcome, that none is, that the rank goes on although others have ended,
# that it "enters" MPI_Finalize, "returns" from it or "skips" it.
# To a supervisor: what to run, a signal to pass on, one that is to end the rank, input (empty for
# its end), that so many bytes of output were taken, that a rank has failed and how, that there are
# other hosts than those of the job, leave to end.
HELLO, STDOUT, STDERR, ENDED, GONE, READY, CLOSED = b"h", b"o", b"e", b"x", b"g", b"r", b"c"
SURVIVED, FINALIZE = b"v", b"n"
START, SIGNAL, END, STDIN, TAKEN, FAILED, RELEASE = b"s", b"k", b"q", b"i", b"t", b"f", b"z"
HOSTS = b"u"

# Bytes of output that a supervisor sends before it hears that they were taken. A reader that pauses
# so never fills a connection: what else there is to tell comes through, and no kernel takes the
# other end for lost (TCP_USER_TIMEOUT).
WINDOW = 1 << 16

NOT_A_MESSAGE = "it sent what is no message of this job"

Message = tuple[bytes, bytes]

_HEADER = struct.Struct("!cI")
LARGEST = 1 << 24  # bytes of a message: an environment may have a few MiB
_READ = 1 << 18

# A host that does not answer for about 20 s is lost; the kernels find that out, no process wakes.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
)


class ControlChannel:
    """A connection that carries messages and never blocks; `lost` says why it has ended.

    `largest` is the number of bytes that a message of the other end may have.
    """

    def __init__(self, connection: socket.socket, largest: int = LARGEST) -> None:
        self._socket = connection
        self.largest = largest
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.lost: str | None = None
        self.ended_by_peer = False  # whether the other process has ended it, and not its host
        self._mute = False  # nothing can be sent; what the other end said before is still to hear
        self._why: OSError | None = None  # it cannot, if the other end has not just closed
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
        if not self._mute:
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
            self._mute = True
            self._outgoing.clear()
            if not isinstance(error, BrokenPipeError):
                self._why = error

    def receive(self) -> list[Message]:
        """The messages that have arrived whole."""
        try:
            data = self._socket.recv(min(_READ, self.largest))
            self._incoming += data
            if not data:
                self._lose(self._why)
        except BlockingIOError:
            return []
        except OSError as error:
            self._lose(error)
        return list(self._take())

    def _lose(self, why: OSError | None) -> None:
        """The other end sends nothing any more; without an error it has closed the connection."""
        if self.lost is None:
            self.ended_by_peer = why is None or isinstance(why, ConnectionResetError)
            found = "it was closed" if why is None else why.strerror
            self.lost = found or type(why).__name__

    def close(self) -> None:
        """End the connection."""
        self.lost = self.lost or "closed here"
        self._socket.close()

    def _take(self) -> Iterable[Message]:
        while len(self._incoming) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._incoming)
            if length > self.largest:
                self.lost = NOT_A_MESSAGE
                return
            end = _HEADER.size + length
            if len(self._incoming) < end:
                return
            payload = bytes(self._incoming[_HEADER.size : end])
            del self._incoming[:end]
            yield kind, payload


def weight(payload: bytes) -> int:
    """Bytes that a message takes of a connection."""
    return _HEADER.size + len(payload)


def count(size: int) -> bytes:
    """A number of bytes, as `TAKEN` carries it."""
    return size.to_bytes(4, "big")


def counted(payload: bytes) -> int:
    """What `count` was given."""
    return int.from_bytes(payload, "big")


def encode(values: Mapping[str, Any]) -> bytes:
    """A message's values; names that are not UTF-8 survive."""
    return json.dumps(values).encode()


def decode(payload: bytes) -> dict[str, Any]:
    """What `encode` was given; ValueError if that is not what it was."""
    try:
        values = json.loads(payload)
    except RecursionError as error:
        raise ValueError("values in too many others") from error
    if not isinstance(values, dict):
        raise ValueError("no names of values")
    return values
