"""Messages from rank to rank: the MPI's, or gloo's where no MPI connects the ranks."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist
from mpi4py import MPI

from gradred.comm import Comm
from gradred.errors import TimeoutError, TransportError, explain  # noqa: A004

Bytes: TypeAlias = torch.Tensor
"""Of uint8, contiguous, in host memory."""

_FOR_EVER = datetime.timedelta(days=3650)


class Messages(Protocol):
    """What carries them between the ranks of a group."""

    def send(self, data: Bytes, to: int, tag: int) -> Message:
        """Send to one rank."""

    def receive(self, data: Bytes, source: int | None, tag: int) -> Message:
        """Receive from one rank, or from any of them."""


class Message:
    """One in flight, with the methods of a named request."""

    asked: str

    def done(self) -> bool:
        """Whether it has been sent, or has come."""
        raise NotImplementedError

    def source(self) -> int:
        """After the end: where it came from."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> None:
        """Block until the end."""
        begin, naps = time.monotonic(), 0
        while not self.done():
            if timeout is not None and time.monotonic() - begin > timeout:
                found = f"it has not ended within {timeout} s"
                raise TimeoutError(explain(self.asked, found, "See whether the peer calls, too"))
            naps += 1
            time.sleep(0 if naps < 1000 else 1e-4)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call `fn` after the end."""
        self.wait()
        fn(self)


class OfMpi:
    """Those of an MPI.

    Args:
        comm: whose ranks send to each other, and nothing else goes by it.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm

    def send(self, data: Bytes, to: int, tag: int) -> Message:
        """To one rank."""
        return _OfMpi(self._comm.Isend([data.numpy(), MPI.BYTE], to, tag), "send")

    def receive(self, data: Bytes, source: int | None, tag: int) -> Message:
        """From one rank, or any."""
        rank = MPI.ANY_SOURCE if source is None else source
        return _OfMpi(self._comm.Irecv([data.numpy(), MPI.BYTE], rank, tag), "recv")


class _OfMpi(Message):
    def __init__(self, request: MPI.Request, asked: str) -> None:
        self._request, self.asked = request, asked
        self._status, self._ended = MPI.Status(), False

    def done(self) -> bool:
        self._ended = self._ended or self._request.Test(self._status)
        return self._ended

    def source(self) -> int:
        return self._status.Get_source()


class OfGloo:
    """PyTorch's own, over the loopback interface: the ranks are on one host.

    Blocking and collective.

    Args:
        store: by which the ranks find each other.
        rank: of this process.
        size: how many there are.
        timeout: to find each other.
    """

    def __init__(
        self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta
    ) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timeout
        self._group = dist.ProcessGroupGloo(store, rank, size, options)

    def send(self, data: Bytes, to: int, tag: int) -> Message:
        """To one rank."""
        return _OfGloo(self._group.send([data], to, tag), "send")

    def receive(self, data: Bytes, source: int | None, tag: int) -> Message:
        """From one rank, or any."""
        if source is None:
            return _OfGloo(self._group.recv_anysource([data], tag), "recv")
        return _OfGloo(self._group.recv([data], source, tag), "recv")


class _OfGloo(Message):
    def __init__(self, work: Any, asked: str) -> None:
        self._work, self.asked = work, asked

    def done(self) -> bool:
        return bool(self._work.is_completed())

    def source(self) -> int:
        return int(self._work._source_rank())

    def wait(self, timeout: float | None = None) -> None:
        limit = _FOR_EVER if timeout is None else datetime.timedelta(seconds=timeout)
        begin = time.monotonic()
        try:
            self._work.wait(limit)
        except RuntimeError as error:
            late = time.monotonic() - begin >= limit.total_seconds()
            kind = TimeoutError if late else TransportError
            found = " ".join(str(error).split())
            remedy = "See whether the peer calls, too"
            raise kind(explain(self.asked, found, remedy)) from error
