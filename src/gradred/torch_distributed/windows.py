"""Windows of torch 2.14: memory of each rank of a group that the other ranks read and write.

The ranks are on one host. Each maps the memory of the others, so a put is a copy into it, and a
remote tensor is that memory. A signal is a message without bytes, which arrives after what its
sender has put before.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

from gradred import _core
from gradred.errors import UsageError, type_of
from gradred.torch_distributed.tensors import as_bytes
from gradred.torch_distributed.work import GradredWork

if TYPE_CHECKING:
    from gradred.torch_distributed.process_group import ProcessGroupOfRanks

_MOST_TEXT = 1024  # bytes in which a rank describes its tensor
_WHERE = (
    "Pass torch.from_numpy(gradred.empty(...)) or gradred.empty_like(tensor), of 64 KiB or more, "
    "or a part of it that has no gaps"
)


class GradredWindow:
    """A window, with the methods of `torch.distributed.Window`.

    torch's own class cannot be made in Python.

    `number` counts the windows that the group has made before, on all ranks alike.
    """

    def __init__(self, group: ProcessGroupOfRanks, number: int) -> None:
        self._group, self._messages = group, group._messages
        self._tag = -1 - number  # programs use no negative tags
        self._tensors: list[torch.Tensor] = []  # by rank; empty: no tensor is registered
        self._late: dict[int, GradredWork] = {}  # waits that were given up, by the signal's rank

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Make a tensor the window's memory of this rank. Blocking and collective.

        Args:
            tensor: in memory of `gradred.empty`, without gaps. Its shape and type may differ
                between ranks.
            owning: the window keeps the tensor's memory alive. Otherwise the program does.

        Raises:
            gradred.UsageError: a rank's tensor cannot be registered; on all ranks.
        """
        asked, group = "tensor_register", self._group
        self._require(asked, registered=False)
        found = self._gathered(_described(tensor))
        for rank, one in enumerate(found):
            if "why" in one:
                raise UsageError(asked, f"the tensor of rank {rank} {one['why']}", _WHERE)
        tensors, why = [], ""
        for rank, one in enumerate(found):
            if rank == group.rank() and owning:
                tensors.append(tensor.detach())
                continue
            try:
                tensors.append(_mapped(one))
            except OSError as error:
                why = why or f"cannot map the memory of rank {rank} ({error})"
        for rank, one in enumerate(self._gathered({"why": why})):
            if one["why"]:
                remedy = "Run the ranks in one container, as one user"
                raise UsageError(asked, f"rank {rank} {one['why']}", remedy)
        self._tensors = tensors

    def tensor_deregister(self) -> None:
        """Let go of the tensors of all ranks. Blocking and collective."""
        self._require("tensor_deregister")
        self._group.barrier(c10d.BarrierOptions()).wait()
        self._tensors = []

    def put(
        self,
        tensor: torch.Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool,
        opts: Any = None,
    ) -> GradredWork:
        """Write a tensor into the window of a rank. It is written when the call returns.

        Args:
            tensor: of the type of that rank's tensor.
            dst_rank: the rank.
            target_offset_nelems: the element of that rank's tensor at which to begin.
            async_op: makes no difference.
            opts: their time limit makes no difference.
        """
        self._require("put")
        target = self._of_rank(dst_rank, "put")
        count, begin = tensor.numel(), target_offset_nelems
        if tensor.dtype is not target.dtype:
            found = f"it is of {tensor.dtype}, and the window of rank {dst_rank} of {target.dtype}"
            raise UsageError("put of a tensor", found, "Pass one of the window's type")
        if begin < 0 or begin + count > target.numel():
            found = f"the window of rank {dst_rank} has {target.numel()} elements"
            asked = f"put of {count} elements at {begin}"
            raise UsageError(asked, found, "Pass a place within it")
        target.view(-1)[begin : begin + count].copy_(tensor.detach().reshape(-1))
        return self._work([])

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """The tensor of a rank: its memory, not a copy."""
        self._require("map_remote_tensor")
        return self._of_rank(rank, "map_remote_tensor")

    def signal(self, peer_rank: int, async_op: bool, opts: Any = None) -> GradredWork:
        """Signal to a rank that what this rank has put before is there."""
        self._require("signal")
        self._of_rank(peer_rank, "signal")
        work = self._work([self._messages.send(_nothing(), peer_rank, self._tag)], opts)
        if not async_op:
            work.wait()
        return work

    def wait_signal(self, peer_rank: int, async_op: bool, opts: Any = None) -> GradredWork:
        """Wait for one signal of a rank.

        Raises:
            gradred.TimeoutError: none has come in time. The next call waits for the same signal.
            gradred.PeerLost: a rank has ended.
        """
        self._require("wait_signal")
        self._of_rank(peer_rank, "wait_signal")
        work = self._late.pop(peer_rank, None)
        if work is None:
            work = self._work([self._messages.receive(_nothing(), peer_rank, self._tag)], opts)
        else:
            work._limit = self._limit_of(opts)
        if not async_op:
            try:
                work.wait()
            except TimeoutError:
                self._late[peer_rank] = work
                raise
        return work

    def get_attr(self, peer_rank: int) -> Any:
        """How a rank's memory is seen: as one, by all."""
        self._require("get_attr")
        self._of_rank(peer_rank, "get_attr")
        of_torch: Any = c10d  # older versions lack it
        made = of_torch.WindowAttr()
        made.access_type = of_torch.WindowAccessType.UNIFIED
        return made

    def _require(self, asked: str, registered: bool = True) -> None:
        if self._group._messages is not self._messages:
            found = "the group was reconfigured after the window was made"
            raise UsageError(asked, found, "Make a new window")
        if registered and not self._tensors:
            raise UsageError(asked, "the window has no tensor", "Call tensor_register first")
        if not registered and self._tensors:
            found = "the window has a tensor already"
            raise UsageError(asked, found, "Call tensor_deregister first")

    def _of_rank(self, rank: int, asked: str) -> torch.Tensor:
        if not 0 <= rank < len(self._tensors):
            found = f"the group has {len(self._tensors)} ranks"
            raise UsageError(f"{asked} with rank {rank}", found, "Pass one of these")
        return self._tensors[rank]

    def _work(self, requests: list[Any], opts: Any = None) -> GradredWork:
        return GradredWork(requests, None, [], self._limit_of(opts))

    def _limit_of(self, opts: Any) -> float | None:
        """The time limit of a call in seconds: that of its options, or of the group."""
        return self._group._limit if opts is None else self._group._limit_of(opts)

    def _gathered(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """What all ranks pass, by rank. Collective."""
        text = json.dumps(own).encode().ljust(_MOST_TEXT)
        given = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        taken = [torch.empty_like(given) for _ in range(self._group.size())]
        self._group.allgather([taken], [given], c10d.AllgatherOptions()).wait()
        return [json.loads(bytes(one.tolist())) for one in taken]


def _nothing() -> torch.Tensor:
    return as_bytes(torch.empty(0, dtype=torch.uint8))


def _described(tensor: torch.Tensor) -> dict[str, Any]:
    """Where other processes find a tensor, or why they do not."""
    if not isinstance(tensor, torch.Tensor):
        return {"why": f"is {type_of(tensor)}"}
    if tensor.layout is not torch.strided:
        return {"why": f"is of the layout {tensor.layout}"}
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.numel() == 0:
        return {"why": "is on a device, has gaps, or has no elements"}
    nbytes = tensor.numel() * tensor.element_size()
    place = _core.array_place(tensor.data_ptr(), nbytes)
    if place is None:
        return {"why": "is not in memory that other processes can map"}
    name = str(tensor.dtype).removeprefix("torch.")
    found = {"process": os.getpid(), "place": place, "shape": list(tensor.shape), "type": name}
    if len(json.dumps(found)) > _MOST_TEXT:
        return {"why": f"has {tensor.dim()} dimensions, too many to describe"}
    return found


def _mapped(found: dict[str, Any]) -> torch.Tensor:
    """The tensor of another process; OSError if its memory cannot be mapped."""
    number, serial, offset, note = found["place"]
    dtype, shape = getattr(torch, found["type"]), found["shape"]
    count = torch.Size(shape).numel()
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(f"/proc/{found['process']}/fd/{number}", flags)
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if not is_file or os.pread(descriptor, 8, note) != serial.to_bytes(8, sys.byteorder):
            raise OSError("another file has its place")
        begin = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        end = offset + count * dtype.itemsize
        memory = mmap.mmap(descriptor, end - begin, offset=begin)
    finally:
        os.close(descriptor)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset - begin).view(shape)
