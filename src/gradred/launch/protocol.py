"""The control channel: messages between `gradred run` and the supervisors of its ranks.

This module, the other modules of launch proxies and supervisors, and what they import are loaded
once per rank. So they import only each other and a few small modules of the standard library.
"""

from __future__ import annotations

import json
import socket
import struct

from gradred.launch import authentication

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` takes as much time as all other imports together
    from collections.abc import Iterable, Mapping
    from typing import Any

# The variable by which a launch proxy knows where to connect: a secret, then addresses, separated
# by spaces.
JOB = "_GRADRED_JOB"

# Kinds of messages. From a supervisor:
#   HELLO: its rank and host                ENDED: how the rank has ended
#   STDOUT, STDERR: output                  GONE: no process of the rank is left
#   READY: the rank takes more input        CLOSED: the rank takes no more input
#   SURVIVED: the rank continues although others have ended, or without ranks that it has left out
#   FINALIZE: the rank "begins" to use gradred, "enters" MPI_Finalize, "returns" or "skips" it
#   BEGUN: the rank has begun to initialise its MPI, asked by ASK
# To a supervisor:
#   START: the program to run               SIGNAL: a signal to pass on
#   END: a signal that is to end the rank   STDIN: input, empty at its end
#   TAKEN: bytes of output received         FAILED: a rank has failed or ended, and how
#   HOSTS: the available hosts are not those of the job
#   ASK: whether the rank has begun to initialise its MPI; answered if it has
#   RELEASE: the supervisor may end
HELLO, STDOUT, STDERR, ENDED, GONE, READY, CLOSED = b"h", b"o", b"e", b"x", b"g", b"r", b"c"
SURVIVED, FINALIZE, BEGUN = b"v", b"n", b"b"
START, SIGNAL, END, STDIN, TAKEN, FAILED, RELEASE = b"s", b"k", b"q", b"i", b"t", b"f", b"z"
HOSTS, ASK = b"u", b"a"

# The bytes of output that a supervisor sends before they are confirmed by TAKEN. So a reader that
# pauses never fills a connection: other messages get through, and no kernel considers the other end
# lost (TCP_USER_TIMEOUT).
WINDOW = 1 << 16

NOT_A_MESSAGE = "it sent what is not a message of this job"

Message = tuple[bytes, bytes]

_HEADER = struct.Struct("!cI")
LARGEST = 1 << 24  # bytes of the largest message: an environment may have a few MiB
_READ = 1 << 18


def bootstrap(module: str) -> str:
    """A program for `python -I -S -c` that calls main() of a module of this package.

    The folder of gradred is its first argument. It runs neither the `__init__` of gradred nor that
    of this package, which would load more than a rank's start needs. It has one line, because
    `gradred run --dry-run` shows it.
    """
    return (
        'import sys; package = type(sys); whole = sys.modules["gradred"] = package("gradred"); '
        'launch = sys.modules["gradred.launch"] = package("gradred.launch"); '
        'whole.__path__ = [sys.argv[1]]; launch.__path__ = [sys.argv[1] + "/launch"]; '
        f"from gradred.launch.{module} import main; main()"
    )


class ControlChannel:
    """A connection that carries messages and never blocks; `lost` says why it has ended.

    `largest` limits the bytes of a message from the other end.
    """

    def __init__(self, connection: socket.socket, largest: int = LARGEST) -> None:
        self._socket = connection
        self.largest = largest
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.lost: str | None = None
        self.ended_by_peer = False  # whether the other process, not its host, has closed it
        self._mute = False  # nothing can be sent; earlier messages can still be received
        self._why: OSError | None = None  # why nothing can be sent, unless the peer just closed
        connection.setblocking(False)
        authentication.keep_alive(connection)

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._socket.fileno()

    @property
    def pending(self) -> int:
        """The bytes that the connection has not accepted yet."""
        return len(self._outgoing)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Queue a message, and send as much as possible without blocking."""
        if not self._mute:
            self._outgoing += _HEADER.pack(kind, len(payload)) + payload
            self.flush()

    def flush(self) -> None:
        """Send as much as possible without blocking."""
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
        """Return the messages that have arrived completely."""
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
        """Note that nothing more can be received; without an error the peer has closed."""
        if self.lost is None:
            self.ended_by_peer = why is None or isinstance(why, ConnectionResetError)
            found = "it was closed" if why is None else why.strerror
            self.lost = found or type(why).__name__

    def close(self) -> None:
        """Close the connection."""
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
    """Return the bytes that a message takes on a connection."""
    return _HEADER.size + len(payload)


def count(size: int) -> bytes:
    """Encode a number of bytes for `TAKEN`."""
    return size.to_bytes(4, "big")


def counted(payload: bytes) -> int:
    """Decode the number that `count` has encoded."""
    return int.from_bytes(payload, "big")


def encode(values: Mapping[str, Any]) -> bytes:
    """Encode a message's values; names that are not UTF-8 are preserved."""
    return json.dumps(values).encode()


def decode(payload: bytes) -> dict[str, Any]:
    """Decode the values that `encode` has encoded; ValueError for any other payload."""
    try:
        values = json.loads(payload)
    except RecursionError as error:
        raise ValueError("values in too many others") from error
    if not isinstance(values, dict):
        raise ValueError("no names of values")
    return values
