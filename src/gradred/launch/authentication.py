"""How `gradred run` and a supervisor prove to each other that they know their job's secret.

Neither sends the secret. What both read before the proof has a fixed length and no structure:

    supervisor -> server     32 random bytes
    server -> supervisor     32 random bytes, and a proof made from both
    supervisor -> server     another proof made from both

The server is the job's rendezvous server.

A proof is an HMAC-SHA256 under the secret, of the sender's role and the random bytes of both sides.
So nobody can reuse it, in another connection or in the other direction. Later messages are neither
encrypted nor signed: this does not stop an attacker who can read or change the hosts' traffic.
"""

from __future__ import annotations

import hmac
import os
import socket
import time

from gradred._util import clock

TYPE_CHECKING = False
if TYPE_CHECKING:  # protocol.py says why `typing` is not imported
    from collections.abc import Iterable

CHALLENGE = 32  # bytes
PROOF = 32
PROVE = 5.0  # seconds for each of both ends to prove that it is of this job
_AGAIN = 0.1  # seconds before all addresses are tried again
# A host that does not answer for about 20 s is lost; the kernels find that out, no process wakes.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
)
_SERVER, _SUPERVISOR = b"gradred server", b"gradred supervisor"


class AuthenticationError(OSError):
    """The other end does not know the secret, or has not proved it in time."""


def answer(secret: bytes, challenge: bytes) -> tuple[bytes, bytes]:
    """Answer as the server; returns the bytes to send, and the proof that it then expects."""
    own = os.urandom(CHALLENGE)
    return own + _proof(secret, _SERVER, challenge + own), _proof(
        secret, _SUPERVISOR, challenge + own
    )


def is_expected(proof: bytes, expected: bytes) -> bool:
    """Return whether two proofs are the same, in a time that does not depend on the answer."""
    return hmac.compare_digest(proof, expected)


class Caller:
    """A caller of the server, which reads no byte more than the proof takes.

    Args:
        connection: not blocking.
        secret: of the job.
    """

    def __init__(self, connection: socket.socket, secret: bytes) -> None:
        self.connection, self._secret = connection, secret
        self.until = clock.now() + PROVE  # it has to have proved by then that it is of this job
        self._received = b""
        self._expected: bytes | None = None  # the proof, once its challenge was answered
        self.is_proved = False

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self.connection.fileno()

    def hear(self) -> bool:
        """Take what has come of a challenge and a proof; False, or OSError, to close it."""
        wanted = CHALLENGE if self._expected is None else PROOF
        try:
            data = self.connection.recv(wanted - len(self._received))
        except BlockingIOError:
            return True
        self._received += data
        if len(self._received) < wanted:
            return bool(data)
        received, self._received = self._received, b""
        if self._expected is None:
            words, self._expected = answer(self._secret, received)
            return self.connection.send(words) == len(words)  # the buffer is empty, so it fits
        self.is_proved = is_expected(received, self._expected)
        return self.is_proved


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel end a connection whose other host is lost; send small messages at once."""
    for option in _KEEP_ALIVE:
        connection.setsockopt(*option)


def connect(secret: bytes, address: str, deadline: float) -> socket.socket:
    """A connection to the job's server at this address; blocks until `deadline` at most.

    Raises:
        AuthenticationError: another server answers there.
        OSError: there is none.
    """
    host, _, port = address.rpartition(":")
    left = max(0.1, deadline - clock.now())
    connection = socket.create_connection((host, int(port)), timeout=left)
    try:
        convince(connection, secret, min(deadline, clock.now() + PROVE))
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_any(
    secret: bytes,
    addresses: Iterable[str],
    deadline: float,
    each: float = float("inf"),
    tried_again: type[OSError] = ConnectionResetError,
) -> socket.socket:
    """Connect to the job's server at the first address where it authenticates itself. Blocks.

    Args:
        secret: of the job.
        addresses: of the server.
        deadline: of the last try.
        each: seconds for an answer from one address.
        tried_again: after such an error, by default because the server had too many callers, all
            addresses are tried again.

    Raises:
        ConnectionError: the server is at none of them; the text says why.
    """
    while True:
        reasons, again = [], False
        for address in addresses:
            try:
                return connect(secret, address, min(deadline, clock.now() + each))
            except OSError as error:
                reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
                again = again or isinstance(error, tried_again)
        if not again or clock.now() > deadline:
            raise ConnectionError(", ".join(reasons))
        time.sleep(_AGAIN)


def convince(connection: socket.socket, secret: bytes, deadline: float) -> None:
    """Authenticate as the supervisor; blocks until `deadline` at most.

    Raises:
        AuthenticationError: the other end is not this job's server.
        OSError: the connection is lost.
    """
    own = os.urandom(CHALLENGE)
    connection.sendall(own)
    answered = read(connection, CHALLENGE + PROOF, deadline)
    theirs, proof = answered[:CHALLENGE], answered[CHALLENGE:]
    if not is_expected(proof, _proof(secret, _SERVER, own + theirs)):
        raise AuthenticationError("it is not this job's launcher")
    connection.sendall(_proof(secret, _SUPERVISOR, own + theirs))


def _proof(secret: bytes, who: bytes, challenges: bytes) -> bytes:
    return hmac.digest(secret, who + challenges, "sha256")


def read(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Read so many bytes; blocks until `deadline` at most. Raises as `convince` does."""
    data = b""
    while len(data) < size:
        left = deadline - clock.now()
        if left <= 0:
            raise AuthenticationError("it does not answer")
        connection.settimeout(left)
        try:
            more = connection.recv(size - len(data))
        except TimeoutError:
            continue
        if not more:
            raise ConnectionResetError("it has closed the connection")
        data += more
    return data
