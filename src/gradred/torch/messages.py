"""Messages from rank to rank: through memory that all ranks share, else the MPI's."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from mpi4py import MPI

from gradred import _core
from gradred._util import clock
from gradred.comm import Comm
from gradred.errors import (
    Error,
    PeerLost,
    TimeoutError,  # noqa: A004
    TransportError,
    UsageError,
    explain,
)

Bytes: TypeAlias = torch.Tensor
"""Of uint8, contiguous, in host memory."""

LookForLost: TypeAlias = Callable[[str], None]
"""Raises PeerLost where a rank has ended; takes what this one waits in."""

_LOOK_EVERY = 0.05  # seconds
_REMEDY = "See whether the peer calls, too"


def _asked(call: str, peer: int | None, ranks: Sequence[int]) -> str:
    """For errors; `ranks` are those of the group, by the program's numbers."""
    whom = "any rank" if peer is None else f"rank {ranks[peer]}"
    return f"{call} {'to' if call == 'send' else 'from'} {whom}"


class Message(Protocol):
    """One in flight, with the methods of a named request."""

    @property
    def name(self) -> str:
        """Empty: it has no number, and is of two ranks alone."""

    @property
    def waits_for(self) -> str:
        """For errors."""

    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def source(self) -> int:
        """After the end: where it came from."""

    def wait(self, timeout: float | None = None) -> None:
        """Block until the end; again it returns, or raises, at once."""

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call `fn` after the end, by another thread than the one that drives."""


class Messages(Protocol):
    """What carries them between the ranks of a group."""

    def send(self, data: Bytes, to: int, tag: int) -> Message:
        """Send to one rank."""

    def receive(self, data: Bytes, source: int | None, tag: int) -> Message:
        """Receive from one rank, or from any of them."""

    def free(self) -> None:
        """There will be no more."""


def messages_of(comm: Comm, ranks: Sequence[int], look: LookForLost) -> Messages:
    """Those of a communicator's ranks, which use it for nothing else. Blocking and collective.

    Args:
        comm: whose ranks send to each other.
        ranks: what errors call them, by rank.
        look: after the ranks; the MPI would wait for ever for one that has ended.
    """
    boxes = _core.mailboxes(comm, ranks)
    return OfMpi(comm, ranks, look) if boxes is None else InMemory(comm, boxes)


class InMemory:
    """Those of ranks that share memory."""

    def __init__(self, comm: Comm, boxes: _core.Mailboxes) -> None:
        self._comm, self._boxes = comm, boxes

    def send(self, data: Bytes, to: int, tag: int) -> Message:
        """To one rank."""
        return self._boxes.send(data.data_ptr(), data.numel(), to, tag, data)

    def receive(self, data: Bytes, source: int | None, tag: int) -> Message:
        """From one rank, or any."""
        return self._boxes.receive(data.data_ptr(), data.numel(), source, tag, data)

    def free(self) -> None:
        """What is in flight ends with an error."""
        self._boxes.close()
        self._comm.free()


class OfMpi:
    """Those of an MPI.

    Args:
        comm: whose ranks send to each other, and nothing else goes by it.
        ranks: what errors call them, by rank.
        look: after the ranks; the MPI would wait for ever for one that has ended.
    """

    def __init__(self, comm: Comm, ranks: Sequence[int], look: LookForLost) -> None:
        self._comm, self._ranks, self._look = comm, ranks, look

    def send(self, data: Bytes, to: int, tag: int) -> Message:
        """To one rank."""
        request = self._comm.Isend([data.numpy(), MPI.BYTE], to, tag)
        return _kept(_OfMpi(request, data, _asked("send", to, self._ranks), self._look))

    def receive(self, data: Bytes, source: int | None, tag: int) -> Message:
        """From one rank, or any."""
        rank = MPI.ANY_SOURCE if source is None else source
        request = self._comm.Irecv([data.numpy(), MPI.BYTE], rank, tag)
        asked = _asked("recv", source, self._ranks)
        return _kept(_OfMpi(request, data, asked, self._look, data.numel()))

    def free(self) -> None:
        """Of the communicator."""
        self._comm.free()


class _OfMpi:
    """One in flight.

    Args:
        request: the MPI's.
        data: what it works on.
        asked: what was called, with the peer.
        look: see `OfMpi`.
        nbytes: that have to come, of a receive.
    """

    name = ""

    def __init__(
        self,
        request: MPI.Request,
        data: Bytes,
        asked: str,
        look: LookForLost,
        nbytes: int | None = None,
    ) -> None:
        self.asked, self.waits_for = asked, f"the {asked}"
        self._request, self._data, self._look = request, data, look
        self._bytes, self._status, self._ended = nbytes, MPI.Status(), False
        self._lost: PeerLost | None = None
        self._failure: Error | None = None
        self._testing = threading.Lock()  # the MPI takes one test of a request at a time

    def done(self) -> bool:
        return self._has_ended_within(0)

    def _has_ended_within(self, seconds: float) -> bool:
        """Whether it has ended, or nobody is there to end it. Another thread may be looking."""
        if self._testing.acquire(blocking=seconds > 0):
            try:
                self._ended = self._ended or self._test(seconds)
            finally:
                self._testing.release()
        return self._ended or self._lost is not None

    def _test(self, seconds: float) -> bool:
        where = (MPI._addressof(self._request), MPI._addressof(self._status))
        code = _core.wait_for_message(*where, seconds)
        if code is None:
            return False
        if code != MPI.SUCCESS:
            self._failure = self._why(MPI.Exception(code))
        elif self._bytes is not None:
            came = self._status.Get_count(MPI.BYTE)
            if came != self._bytes:
                self._failure = self._does_not_fit(f"{came} bytes have come")
        return True

    def _why(self, error: MPI.Exception) -> Error:
        if error.Get_error_class() == MPI.ERR_TRUNCATE:
            made: Error = self._does_not_fit("more have come")
        else:
            made = TransportError(explain(self.asked, str(error), _REMEDY))
        made.__cause__ = error
        return made

    def _does_not_fit(self, what_came: str) -> UsageError:
        found = f"the tensor has {self._bytes} bytes, and {what_came}"
        return UsageError(explain(self.asked, found, "Pass a tensor of the size of the sender's"))

    def source(self) -> int:
        return self._status.Get_source()

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            threading.Thread(target=self._wait_and_call, args=(fn,), daemon=True).start()
        else:  # the MPI takes no calls from a thread of ours
            self._wait_and_call(fn)

    def _wait_and_call(self, fn: Callable[[Any], object]) -> None:
        with contextlib.suppress(Error):  # `wait` raises it again
            self.wait()
        fn(self)

    def wait(self, timeout: float | None = None) -> None:
        begin, seconds = clock.now(), _LOOK_EVERY
        if timeout is not None:
            seconds = min(seconds, timeout)
        while not self._has_ended_within(seconds):
            if timeout is not None and clock.now() - begin >= timeout:
                found = f"it has not ended within {timeout:g} s; it goes on"
                raise TimeoutError(explain(self.asked, found, _REMEDY))
            self._look_for_lost()
        if self._failure is not None:
            raise self._failure
        if self._lost is not None and not self._ended:
            raise self._lost

    def _look_for_lost(self) -> None:
        try:
            self._look(self.asked)
        except PeerLost as error:
            self._lost = error

    @property
    def holds_memory(self) -> bool:
        """Whether the MPI may read or write it; looks at it once."""
        self.done()
        return not self._ended


# The MPI goes on with what the program forgets, and so its memory has to live.
_in_flight: collections.deque[_OfMpi] = collections.deque()


def _kept(message: _OfMpi) -> _OfMpi:
    """The message, whose memory lives until it has ended; lets go of two that have."""
    for _ in range(min(2, len(_in_flight))):
        earlier = _in_flight.popleft()
        if earlier.holds_memory:
            _in_flight.append(earlier)
    _in_flight.append(message)
    return message
