"""Named put and get between ranks: each message has a name, and nothing waits for all ranks."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple, cast

import numpy as np

from gradred import config, errors
from gradred._util import clock
from gradred.compression import Bytes
from gradred.schemes.transport import Look, Transport

_HEAD = struct.Struct("<B3xIqqq")  # stage, piece, clock, number, round: a multiple of 8 bytes
_FIRST_NAP, _LONGEST_NAP = 20e-6, 200e-6  # seconds
_LOOK_EVERY = 0.05  # seconds between looks for lost ranks


class Stage(IntEnum):
    """What a message is for."""

    GRADIENT = 0  # put to a server
    VALUE = 1  # a server's answer: the parameters; its number is their version
    FINAL = 2  # get: the parameters, once all workers are done
    DONE = 3  # a worker makes no more steps
    ALL = 4  # to each other worker
    UP = 5  # to the leader of a group
    ACROSS = 6  # from leader to leader
    DOWN = 7  # from the leader of a group
    WEIGHTS = 8  # parameters to be averaged
    ROUND = 9  # of a schedule; its number is the round


class Key(NamedTuple):
    """The name of a message: what for, of which piece, at which step of the sender."""

    stage: Stage
    piece: int = 0
    clock: int = 0
    round: int = 0

    def __str__(self) -> str:
        """Return the name that error messages use; pieces and steps are counted from 0."""
        step = "after the last step" if self.clock < 0 else f"of step {self.clock}"
        return f"{self.stage.name.lower()} {self.piece} {step}"


class Message(NamedTuple):
    """A message that has arrived."""

    source: int
    key: Key
    number: int
    payload: Bytes


class Exchange:
    """Puts messages under names, and gets them by name in any order."""

    def __init__(self, transport: Transport, look: Look) -> None:
        self.transport = transport
        self._look = look
        self._inbox: dict[tuple[int, Key], Message] = {}
        self._timeout: float | None = config.get("timeout")
        self._warn_after: float = config.get("warn_after")
        self._looked = clock.now()

    def put(self, to: Iterable[int], key: Key, payload: Bytes, number: int = 0) -> None:
        """Send a payload under a name. Copies it, and returns at once.

        Args:
            to: the ranks that get it; not this one.
            key: the name.
            payload: the bytes.
            number: travels with it.
        """
        message = np.empty(_HEAD.size + payload.size, np.uint8)
        fields = key.stage, key.piece, key.clock, number, key.round
        message[: _HEAD.size] = np.frombuffer(_HEAD.pack(*fields), np.uint8)
        message[_HEAD.size :] = payload
        for rank in to:
            self.transport.send(rank, message)

    def has(self, source: int, key: Key) -> bool:
        """Return whether `get` of this message would return at once; moves messages on."""
        self._progress()
        return (source, key) in self._inbox

    def get(self, source: int, key: Key) -> Message:
        """Return the message that a rank has put here under a name. Blocks until it has come.

        Raises:
            PeerLost: a rank has ended.
            TimeoutError: the message has not come within `GRADRED_TIMEOUT`.
        """
        name = source, key
        self._wait(lambda: name in self._inbox, f"{key} of rank {source}")
        return self._inbox.pop(name)

    def next(self, source: int, key: Key) -> Message:
        """Return the oldest message of a rank; blocks and raises like `get`.

        Args:
            source: the rank.
            key: the name that is expected, for reports.
        """

        def oldest() -> tuple[int, Key] | None:
            return next((name for name in self._inbox if name[0] == source), None)

        self._wait(lambda: oldest() is not None, f"{key} of rank {source}")
        return self._inbox.pop(cast("tuple[int, Key]", oldest()))

    def any(self) -> Message:
        """Return any message; blocks and raises like `get`."""
        self._wait(lambda: bool(self._inbox), "a message of any worker")
        return self._inbox.pop(next(iter(self._inbox)))

    def flush(self) -> None:
        """Block until all messages of this rank have left it; raises like `get`."""
        self._wait(lambda: not self.transport.pending(), "messages that other ranks do not take")

    def poll(self) -> None:
        """Move messages on. Does not block."""
        self._progress()

    def _progress(self) -> bool:
        arrived = self.transport.poll()
        for source, message in arrived:
            stage, piece, step, number, round_ = _HEAD.unpack(message[: _HEAD.size].tobytes())
            key = Key(Stage(stage), piece, step, round_)
            self._inbox[source, key] = Message(source, key, number, message[_HEAD.size :])
        return bool(arrived)

    def _wait(self, until: Callable[[], bool], what: str) -> None:
        nap, begin = _FIRST_NAP, clock.now()
        report_after = self._warn_after
        while True:
            came = self._progress()
            self._look_now_and_then(what)
            if until():
                return
            if came:
                nap = _FIRST_NAP
                continue
            self.transport.idle(nap)
            nap = min(2 * nap, _LONGEST_NAP)
            waited = clock.now() - begin
            if self._timeout is not None and waited > self._timeout:
                found = f"it has not come within {self._timeout:g} s"
                raise errors.TimeoutError(what, found, "See what the other ranks do: gradred ps")
            if waited > report_after:
                report_after *= 2
                text = f"gradred: rank {self.transport.rank} has waited {waited:.0f} s for {what}"
                print(f"{text}; `gradred ps` shows where each rank is", file=sys.stderr, flush=True)

    def _look_now_and_then(self, what: str) -> None:
        """Look for lost ranks, also while messages of the others keep coming."""
        now = clock.now()
        if now - self._looked >= _LOOK_EVERY:
            self._looked = now
            self._look(f"a training step, for {what}")
