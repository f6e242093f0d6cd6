"""Messages between two ranks, through shared memory or else through MPI."""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from mpi4py import MPI

from gradred import _core
from gradred.comm import Comm
from gradred.errors import (
    Error,
    PeerLost,
    TimeoutError,  # noqa: A004
    TransportError,
    UsageError,
)

Bytes: TypeAlias = torch.Tensor
"""A contiguous uint8 tensor in host memory."""

LookForLost: TypeAlias = Callable[[str], None]
"""Raises PeerLost if a rank has ended. The argument names the call that waits."""

Messages: TypeAlias = "InMemory | OfMpi"
"""Sends and receives messages between the ranks of a group."""

_LONG = 1e6  # seconds of one wait without a time limit
_REMEDY = "See whether the peer calls, too"


def _asked(call: str, peer: int | None, ranks: Sequence[int]) -> str:
    """Describe a call for errors. `ranks` are the program's numbers of the group's ranks."""
    whom = "any rank" if peer is None else f"rank {ranks[peer]}"
    return f"{call} {'to' if call == 'send' else 'from'} {whom}"


def messages_of(comm: Comm, ranks: Sequence[int], look: LookForLost) -> Messages:
    """Create the messages of a communicator's ranks. Blocking and collective.

    The communicator is used for nothing else.

    Args:
        comm: communicator of the ranks.
        ranks: the ranks' numbers in error messages, by rank.
        look: checks whether a rank has ended. MPI alone would wait for ever for such a rank.
    """
    boxes = _core.mailboxes(comm, ranks)
    return OfMpi(comm, ranks, look) if boxes is None else InMemory(comm, boxes)


class InMemory:
    """Messages between ranks that share memory. In flight they have a named request's methods."""

    def __init__(self, comm: Comm, boxes: _core.Mailboxes) -> None:
        self._comm, self._boxes = comm, boxes

    def send(self, data: Bytes, to: int, tag: int) -> _core.Message:
        """Send to one rank."""
        return self._boxes.send(data.data_ptr(), data.numel(), to, tag, data)

    def receive(self, data: Bytes, source: int | None, tag: int) -> _core.Message:
        """Receive from one rank, or from any of them."""
        return self._boxes.receive(data.data_ptr(), data.numel(), source, tag, data)

    def free(self) -> None:
        """Free the resources. Messages in flight fail."""
        self._boxes.close()
        self._comm.free()


class OfMpi:
    """Messages through MPI; the arguments are those of `messages_of`."""

    def __init__(self, comm: Comm, ranks: Sequence[int], look: LookForLost) -> None:
        self._comm, self._ranks, self._look = comm, ranks, look

    def send(self, data: Bytes, to: int, tag: int) -> _OfMpi:
        """Send to one rank."""
        request = self._comm.Isend([data.numpy(), MPI.BYTE], to, tag)
        return _kept(_OfMpi(request, data, _asked("send", to, self._ranks), self._look))

    def receive(self, data: Bytes, source: int | None, tag: int) -> _OfMpi:
        """Receive from one rank, or from any of them."""
        rank = MPI.ANY_SOURCE if source is None else source
        request = self._comm.Irecv([data.numpy(), MPI.BYTE], rank, tag)
        asked = _asked("recv", source, self._ranks)
        return _kept(_OfMpi(request, data, asked, self._look, data.numel()))

    def free(self) -> None:
        """Free the communicator."""
        self._comm.free()


class _OfMpi:
    """A message in flight through MPI, with the methods of `_core.Message`.

    Args:
        request: MPI's request.
        data: buffer to send or to receive into.
        asked: description of the call and its peer, for errors.
        look: see `OfMpi`.
        nbytes: expected size of a received message. None: this is a send.
    """

    name = ""  # a message concerns two ranks only, and has no operation number
    way = "the MPI"

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
        self._testing = threading.Lock()  # MPI allows one test of a request at a time

    def done(self) -> bool:
        return self._has_ended_within(0)

    def _has_ended_within(self, seconds: float) -> bool:
        """Whether the message has ended or a rank is lost. Another thread may test meanwhile."""
        if self._testing.acquire(timeout=seconds):
            try:
                self._ended = self._ended or self._test(seconds)
            except PeerLost as error:
                self._lost = error
            finally:
                self._testing.release()
        return self._ended or self._lost is not None

    def _test(self, seconds: float) -> bool:
        where = (MPI._addressof(self._request), MPI._addressof(self._status))
        # No Python code runs within, so no signal handler does that could change the tensor.
        look = functools.partial(self._look, self.asked)
        code = _core.wait_for_message(*where, seconds, look)
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
            made = TransportError(self.asked, str(error), _REMEDY)
        made.__cause__ = error
        return made

    def _does_not_fit(self, what_came: str) -> UsageError:
        found = f"the tensor has {self._bytes} bytes, and {what_came}"
        return UsageError(self.asked, found, "Pass a tensor of the size of the sender's")

    def source(self) -> int:
        return self._status.Get_source()

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            threading.Thread(target=self._wait_and_call, args=(fn,), daemon=True).start()
        else:  # MPI allows no calls from a second thread
            self._wait_and_call(fn)

    def _wait_and_call(self, fn: Callable[[Any], object]) -> None:
        with contextlib.suppress(Error):  # `wait` raises it again
            self.wait()
        fn(self)

    def wait(self, timeout: float | None = None) -> None:
        while not self._has_ended_within(_LONG if timeout is None else timeout):
            if timeout is not None:
                found = f"it has not ended within {timeout:g} s; it goes on"
                raise TimeoutError(self.asked, found, _REMEDY)
        if self._failure is not None:
            raise self._failure
        if self._lost is not None and not self._ended:
            raise self._lost

    @property
    def holds_memory(self) -> bool:
        """Whether MPI may still access the memory. Tests the request once."""
        self.done()
        return not self._ended


# MPI continues with a message that the program no longer refers to, so its memory is kept alive.
_in_flight: collections.deque[_OfMpi] = collections.deque()


def _kept(message: _OfMpi) -> _OfMpi:
    """Keep the message alive until it has ended. Also checks two earlier messages for their end."""
    for _ in range(min(2, len(_in_flight))):
        earlier = _in_flight.popleft()
        if earlier.holds_memory:
            _in_flight.append(earlier)
    _in_flight.append(message)
    return message
