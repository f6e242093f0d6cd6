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

from gradred._util import clock

CHALLENGE = 32  # bytes
PROOF = 32
_PROVE = 5.0  # seconds for whoever answers at an address to prove that it is the job's server
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


class AuthenticationError(Exception):
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
        convince(connection, secret, min(deadline, clock.now() + _PROVE))
    except BaseException:
        connection.close()
        raise
    return connection


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
