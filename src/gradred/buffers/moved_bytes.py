"""Bcast and Allgather of any MPI type, moved as bytes.

In these calls ranks may describe the same elements by different types: a column of a matrix on one
rank, a vector on another. The ranks must agree on the sequence of basic types, so the core gets
this sequence. Elements with gaps are packed before the call and unpacked after it.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Literal

from mpi4py import MPI

from gradred import _core
from gradred.buffers import messages, typemaps
from gradred.buffers.cuda_interface import require_host
from gradred.buffers.messages import Message
from gradred.buffers.refusing import refusing
from gradred.buffers.typemaps import Comparable
from gradred.errors import TransportError, UsageTypeError, explain, type_of, usage_error


def bcast(comm: MPI.Comm, buf: Any, root: int = 0) -> None:
    """Broadcast the data of a buffer specification; blocks until it is there.

    Raises:
        gradred.UsageError: the specification is not valid, or root is not a rank.
    """
    with refusing(comm):
        root = rank_of_root(root, comm, "Bcast")
        sends = comm.Get_rank() == root
        message = messages.read(buf, "Bcast's buf", writable=not sends)
        block = typemaps.comparable(message)
        memory = _Bytes(message)
        if sends:
            memory.pack()
    _core.run(comm, _call("bcast", None, memory, block, root))
    _core.know_compared("bcast", buf, block.count, None, block.hash)
    if not sends:
        memory.unpack()


def rank_of_root(root: Any, comm: MPI.Comm, asked: str) -> int:
    """Return `root` as an int; UsageError unless it is a rank of the communicator."""
    size = comm.Get_size()
    remedy = f"Give a rank, 0 to {size - 1}"
    try:
        rank = operator.index(root)
    except TypeError:
        found = f"{type_of(root)} is not a rank"
        raise UsageTypeError(f"{asked} with root={root!r}", found, remedy) from None
    if not 0 <= rank < size:
        found = f"the communicator has {size} ranks"
        raise usage_error(explain(f"{asked} with root={rank}", found, remedy), "ERR_ROOT")
    return rank


def allgather(comm: MPI.Comm, sendbuf: Any, recvbuf: Any) -> None:
    """Gather every rank's elements on every rank; blocks until they are there.

    Raises:
        gradred.UsageError: the specifications are not valid or are inconsistent.
    """
    with refusing(comm):
        origin, target, block = _gathered(comm, sendbuf, recvbuf)
    _core.run(comm, _call("allgather", origin, target, block))
    _core.know_compared("allgather", recvbuf, block.count, None, block.hash)
    target.unpack()


def _call(
    kind: Literal["bcast", "allgather"],
    send: _Bytes | None,
    recv: _Bytes,
    block: Comparable,
    root: int = 0,
) -> _core.Call:
    return _core.Call(
        kind,
        None if send is None else send.address,
        recv.address,
        block.count,
        block.dtype,
        root=root,
        layout=block.hash,
        placement=_core.placement(None if send is None else send.message, recv.message),
    )


def _gathered(
    comm: MPI.Comm, sendbuf: Any, recvbuf: Any
) -> tuple[_Bytes | None, _Bytes, Comparable]:
    """Return the input (None for in place), the result, and the elements of a block."""
    size = comm.Get_size()
    recv = messages.read(recvbuf, "Allgather's recvbuf", writable=True, blocks=size)
    block = typemaps.comparable(recv)
    in_place = sendbuf is None or sendbuf is MPI.IN_PLACE
    target = _Bytes(dataclasses.replace(recv, count=recv.count * size))
    origin = None
    if in_place:
        target.pack()
    else:
        send = messages.read(sendbuf, "Allgather's sendbuf", writable=False)
        _check(send, recv, block, size)
        origin = _Bytes(send)
        origin.pack()
    return origin, target, block


def _check(send: Message, recv: Message, block: Comparable, size: int) -> None:
    sent = typemaps.comparable(send)
    if sent != block:
        found = f"sendbuf has {sent.text}, a block of recvbuf {block.text}"
        raise usage_error(explain("Allgather", found, "Pass the same in both"), "ERR_TRUNCATE")
    if send.dtype is not None and recv.dtype is not None:
        messages.refuse_overlap("Allgather", send, recv, 1, size)


class _Bytes:
    """A message as contiguous bytes: its own memory, or a packed copy."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self._packed: bytearray | None = None
        self.address = message.address
        if message.dtype is None and not _is_contiguous(message):
            require_host(message, "packing elements with gaps")
            self._packed = bytearray(message.count * message.itemsize)
            self.address = MPI.Get_address(self._packed) if self._packed else 0

    def pack(self) -> None:
        """Copy the elements to the packed bytes."""
        if self._packed:
            with_gaps = _from_address(self.message, self.address)
            memory = MPI.buffer.fromaddress(self.address, 1)
            position = with_gaps.Pack(memory, self._packed, 0, MPI.COMM_SELF)
            with_gaps.Free()
            self._check(position)

    def unpack(self) -> None:
        """Copy the packed bytes back to the elements."""
        if self._packed:
            with_gaps = _from_address(self.message, self.address)
            memory = MPI.buffer.fromaddress(self.address, 1)
            position = with_gaps.Unpack(self._packed, 0, memory, MPI.COMM_SELF)
            with_gaps.Free()
            self._check(position)

    def _check(self, position: int) -> None:
        assert self._packed is not None
        if position != len(self._packed):
            raise TransportError(
                f"MPI_Pack made {position} bytes of {len(self._packed)}: this MPI packs in a form "
                "of its own, and gradred cannot move derived types on it"
            )


def _is_contiguous(message: Message) -> bool:
    datatype = message.datatype
    assert datatype is not None
    return datatype.is_predefined and datatype.Get_extent() == (0, datatype.Get_size())


def _from_address(message: Message, base: int) -> MPI.Datatype:
    """Make a type of all elements that starts at `base`; for mpi4py its extent is one byte."""
    assert message.datatype is not None
    moved = message.datatype.Create_hindexed([message.count], [message.address - base])
    resized = moved.Create_resized(0, 1).Commit()
    moved.Free()
    return resized
