"""How `gradred run` and a supervisor prove to each other that they know their job's secret.

Neither says the secret, and what both read before that is of a fixed length and has no form:

    supervisor -> server     32 random bytes
    server -> supervisor     32 random bytes, and a proof that is made of both
    supervisor -> server     another proof of both

The server is the job's rendezvous server.

A proof is an HMAC-SHA256 under the secret, of who proves and the bytes of both sides, so that it
serves nobody else, no other time and not in the other direction. What follows is neither encrypted
nor signed: whoever can read or change what hosts send to each other is not kept out by this.
"""

from __future__ import annotations

import hmac
import os

from gradred._util import clock

TYPE_CHECKING = False
if TYPE_CHECKING:  # see protocol
    import socket

CHALLENGE = 32  # bytes
PROOF = 32
_SERVER, _SUPERVISOR = b"gradred server", b"gradred supervisor"


class AuthenticationError(Exception):
    """The other end does not know the secret, or does not say so in time."""


def answer(secret: bytes, challenge: bytes) -> tuple[bytes, bytes]:
    """The server's part: what it sends, and the proof that it expects then."""
    own = os.urandom(CHALLENGE)
    return own + _proof(secret, _SERVER, challenge + own), _proof(
        secret, _SUPERVISOR, challenge + own
    )


def is_expected(proof: bytes, expected: bytes) -> bool:
    """Whether two proofs are the same; takes as long where they are not."""
    return hmac.compare_digest(proof, expected)


def convince(connection: socket.socket, secret: bytes, deadline: float) -> None:
    """The supervisor's part; blocks until `deadline` at most.

    Raises:
        AuthenticationError: the other end is not this job's server.
        OSError: the connection is lost.
    """
    own = os.urandom(CHALLENGE)
    connection.sendall(own)
    answered = _read(connection, CHALLENGE + PROOF, deadline)
    theirs, proof = answered[:CHALLENGE], answered[CHALLENGE:]
    if not is_expected(proof, _proof(secret, _SERVER, own + theirs)):
        raise AuthenticationError("it is not this job's launcher")
    connection.sendall(_proof(secret, _SUPERVISOR, own + theirs))


def _proof(secret: bytes, who: bytes, challenges: bytes) -> bytes:
    return hmac.digest(secret, who + challenges, "sha256")


def _read(connection: socket.socket, size: int, deadline: float) -> bytes:
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
