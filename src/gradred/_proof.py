"""How `gradred run` and a keeper of its job prove to each other that they know the job's secret.

Neither says the secret, and what both read before that is of a fixed length and has no form:

    keeper -> door     32 random bytes
    door -> keeper     32 random bytes, and a proof that is made of both
    keeper -> door     another proof of both

A proof is an HMAC-SHA256 under the secret, of who proves and the bytes of both sides, so that it
serves nobody else, no other time and not in the other direction. What follows is neither encrypted
nor signed: whoever can read or change what hosts send to each other is not kept out by this.
"""

from __future__ import annotations

import hmac
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # see _wire
    import socket

CHALLENGE = 32  # bytes
PROOF = 32
_DOOR, _KEEPER = b"gradred door", b"gradred keeper"


class StrangerError(Exception):
    """The other end does not know the secret, or does not say so in time."""


def answer(secret: bytes, challenge: bytes) -> tuple[bytes, bytes]:
    """The door's part: what it sends, and the proof that it expects then."""
    own = os.urandom(CHALLENGE)
    return own + _proof(secret, _DOOR, challenge + own), _proof(secret, _KEEPER, challenge + own)


def is_expected(proof: bytes, expected: bytes) -> bool:
    """Whether two proofs are the same; takes as long where they are not."""
    return hmac.compare_digest(proof, expected)


def convince(connection: socket.socket, secret: bytes, deadline: float) -> None:
    """The keeper's part; blocks until `deadline` at most.

    Raises:
        StrangerError: the other end is no door of this job.
        OSError: the connection is lost.
    """
    own = os.urandom(CHALLENGE)
    connection.sendall(own)
    answered = _read(connection, CHALLENGE + PROOF, deadline)
    theirs, proof = answered[:CHALLENGE], answered[CHALLENGE:]
    if not is_expected(proof, _proof(secret, _DOOR, own + theirs)):
        raise StrangerError("it is not this job's launcher")
    connection.sendall(_proof(secret, _KEEPER, own + theirs))


def _proof(secret: bytes, who: bytes, challenges: bytes) -> bytes:
    return hmac.digest(secret, who + challenges, "sha256")


def _read(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise StrangerError("it does not answer")
        connection.settimeout(left)
        try:
            more = connection.recv(size - len(data))
        except TimeoutError:
            continue
        if not more:
            raise ConnectionResetError("it has closed the connection")
        data += more
    return data
