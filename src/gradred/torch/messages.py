"""Messages from rank to rank: the MPI's, or gloo's where no MPI connects the ranks."""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist
from mpi4py import MPI

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

_FOR_EVER = datetime.timedelta(days=3650)
_LOOK_EVERY = 0.05  # seconds
_REMEDY = "See whether the peer calls, too"


def _asked(call: str, peer: int | None) -> str:
    whom = "any rank" if peer is None else f"rank {peer}"
    return f"{call} {'to' if call == 'send' else 'from'} {whom}"


class Messages(Protocol):
    """What carries them between the ranks of a group."""

    def send(self, data: Bytes, to: int, tag: int) -> Message:
        """Send to one rank."""

    def receive(self, data: Bytes, source: int | None, tag: int) -> Message:
        """Receive from one rank, or from any of them."""

    def free(self) -> None:
        """There will be no more."""


class Message:
    """One in flight, with the methods of a named request.

    Args:
        asked: what was called, with the peer.
    """

    name = ""  # no number: it is of two ranks alone

    def __init__(self, asked: str) -> None:
        self.asked = asked

    @property
    def waits_for(self) -> str:
        """For errors."""
        return f"the {self.asked}"

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        raise NotImplementedError

    def source(self) -> int:
        """After the end: where it came from."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> None:
        """Block until the end; again it returns, or raises, at once."""
        raise NotImplementedError

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call `fn` after the end, by a thread of this message."""
        threading.Thread(target=self._wait_and_call, args=(fn,), daemon=True).start()

    def _wait_and_call(self, fn: Callable[[Any], object]) -> None:
        with contextlib.suppress(Error):  # `wait` raises it again
            self.wait()
        fn(self)

    def _is_late(self, timeout: float | None) -> TimeoutError:
        found = f"it has not ended within {timeout:g} s; it goes on"
        return TimeoutError(explain(self.asked, found, _REMEDY))


class OfMpi:
    """Those of an MPI.

    Args:
        comm: whose ranks send to each other, and nothing else goes by it.
        look: after the ranks; the MPI would wait for ever for one that has ended.
    """

    def __init__(self, comm: Comm, look: LookForLost) -> None:
        self._comm, self._look = comm, look

    def send(self, data: Bytes, to: int, tag: int) -> Message:
        """To one rank."""
        request = self._comm.Isend([data.numpy(), MPI.BYTE], to, tag)
        return _OfMpi(request, _asked("send", to), self._look)

    def receive(self, data: Bytes, source: int | None, tag: int) -> Message:
        """From one rank, or any."""
        rank = MPI.ANY_SOURCE if source is None else source
        request = self._comm.Irecv([data.numpy(), MPI.BYTE], rank, tag)
        return _OfMpi(request, _asked("recv", source), self._look, data.numel())

    def free(self) -> None:
        """Of the communicator."""
        self._comm.free()


class _OfMpi(Message):
    """One in flight; `nbytes` are those that have to come, of a receive."""

    def __init__(
        self, request: MPI.Request, asked: str, look: LookForLost, nbytes: int | None = None
    ) -> None:
        super().__init__(asked)
        self._request, self._look = request, look
        self._bytes, self._status, self._ended = nbytes, MPI.Status(), False
        self._lost: PeerLost | None = None
        self._failure: Error | None = None
        self._testing = threading.Lock()  # the MPI takes one test of a request at a time

    def done(self) -> bool:
        with self._testing:
            try:
                self._ended = self._ended or self._has_ended()
            except MPI.Exception as error:
                self._ended, self._failure = True, self._why(error)
            return self._ended or self._lost is not None

    def _has_ended(self) -> bool:
        ended = self._request.Test(self._status)
        if ended and self._bytes is not None:
            came = self._status.Get_count(MPI.BYTE)
            if came != self._bytes:
                self._failure = self._does_not_fit(f"{came} bytes have come")
        return bool(ended)

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
            super().add_done_callback(fn)
        else:  # the MPI takes no calls from a thread of ours
            self._wait_and_call(fn)

    def wait(self, timeout: float | None = None) -> None:
        begin = looked = clock.now()
        naps = 0
        while not self.done():
            now = clock.now()
            if timeout is not None and now - begin > timeout:
                raise self._is_late(timeout)
            if now - looked > _LOOK_EVERY:
                looked = now
                self._look_for_lost()
            naps += 1
            time.sleep(0 if naps < 1000 else 1e-4)
        if self._failure is not None:
            raise self._failure
        if self._lost is not None and not self._ended:
            raise self._lost

    def _look_for_lost(self) -> None:
        try:
            self._look(self.asked)
        except PeerLost as error:
            self._lost = error


class OfGloo:
    """PyTorch's own, over the loopback interface: the ranks are on one host.

    Blocking and collective.

    Args:
        store: by which the ranks find each other.
        rank: of this process.
        size: how many there are.
        timeout: to find each other.
        look: after the ranks, where gloo has an error.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: datetime.timedelta,
        look: LookForLost,
    ) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timeout
        self._group = dist.ProcessGroupGloo(store, rank, size, options)
        self._look = look

    def send(self, data: Bytes, to: int, tag: int) -> Message:
        """To one rank."""
        work = self._group.send([data], to, tag)
        return _OfGloo(work, _asked("send", to), self._look)

    def receive(self, data: Bytes, source: int | None, tag: int) -> Message:
        """From one rank, or any."""
        if source is None:
            work = self._group.recv_anysource([data], tag)
        else:
            work = self._group.recv([data], source, tag)
        return _OfGloo(work, _asked("recv", source), self._look)

    def free(self) -> None:
        """Nothing: what gloo holds ends with this object."""


class _OfGloo(Message):
    """One can only wait for gloo's works, and once. A thread does, if asked whether it is done."""

    def __init__(self, work: Any, asked: str, look: LookForLost) -> None:
        super().__init__(asked)
        self._work, self._look = work, look
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._waiting, self._starting = threading.Lock(), threading.Lock()
        self._by_thread = False

    def done(self) -> bool:
        if not self._over.is_set():
            self._have_thread_wait()
        return self._over.is_set()

    def source(self) -> int:
        return int(self._work._source_rank())

    def wait(self, timeout: float | None = None) -> None:
        if not self._over.is_set():
            self._wait(timeout)
        if self._failure is not None:
            raise self._failure

    def _wait(self, timeout: float | None) -> None:
        """Here, or where another thread is at it, for that."""
        begin = clock.now()
        if not self._waiting.acquire(timeout=-1 if timeout is None else timeout):
            raise self._is_late(timeout)
        try:
            if not self._over.is_set():
                left = None if timeout is None else begin + timeout - clock.now()
                self._wait_once(left)
        finally:
            self._waiting.release()

    def _wait_once(self, timeout: float | None) -> None:
        limit = _FOR_EVER if timeout is None else datetime.timedelta(seconds=max(timeout, 1e-3))
        begin = clock.now()
        try:
            self._work.wait(limit)
        except RuntimeError as error:
            if clock.now() - begin >= limit.total_seconds():
                raise self._is_late(timeout) from error
            self._failure = self._why(error)
        self._over.set()

    def _why(self, error: RuntimeError) -> Exception:
        """The connection ends a moment before the process does."""
        for _ in range(20):
            try:
                self._look(self.asked)
            except PeerLost as lost:
                return lost
            time.sleep(_LOOK_EVERY)
        found = TransportError(explain(self.asked, " ".join(str(error).split()), _REMEDY))
        found.__cause__ = error
        return found

    def _have_thread_wait(self) -> None:
        with self._starting:
            if self._by_thread:
                return
            self._by_thread = True
        threading.Thread(target=self._wait, args=(None,), daemon=True).start()
