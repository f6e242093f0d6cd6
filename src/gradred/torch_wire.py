"""DistributedDataParallel with gradients that are compressed between hosts.

    ddp.register_comm_hook(torch_wire.Wire("int8"), torch_wire.compress)

The sums are those of `gradred.allreduce(wire=)`. With `Wire("int4", feedback=True)` each host adds
what its encodings have lost of a gradient to the next one of the same parameter. This module works
with process groups of any backend; gradients of a GPU are encoded by the host.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from gradred import _core
from gradred.coded import Parts
from gradred.errors import UsageError
from gradred.torch_leaves import require_alike

_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # from 2.13 on


def require_form(form: str, asked: str) -> None:
    """Raise UsageError if there is no such form. `"auto"` is none: what is owed is in one form."""
    if form not in _core.WIRES:
        remedy = f"Name one of {', '.join(_core.WIRES)}"
        raise UsageError(asked, f"form={form!r} is none", remedy)


class Ranks(Protocol):
    """How a `Wire` reaches the ranks of a job: by groups of torch.distributed, or otherwise."""

    rank: int

    def gather_objects(self, one: Any) -> list[Any]:
        """Gather an object of each rank, in their order. Blocks."""

    def divide(self, hosts: Sequence[Sequence[int]]) -> None:
        """Make groups: of the ranks of each host, and of the first ranks of all hosts. Blocks."""

    def add_up(self, vector: torch.Tensor) -> None:
        """Replace a vector by the sum over the ranks of this host. Blocks."""

    def spread(self, vector: torch.Tensor) -> None:
        """Replace a vector by that of the host's first rank. Blocks."""

    def swap(self, came: torch.Tensor, sent: torch.Tensor) -> None:
        """Send a row to the first rank of each host, and receive one of each. Blocks."""

    def collect(self, came: torch.Tensor, own: torch.Tensor) -> None:
        """Gather the rows of the first ranks of all hosts. Blocks."""


class _RanksOfTorch:
    """Those of the default group."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()

    def gather_objects(self, one: Any) -> list[Any]:
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, one)
        return everyone

    def divide(self, hosts: Sequence[Sequence[int]]) -> None:
        for ranks in hosts:
            made = dist.new_group(list(ranks))
            if self.rank in ranks:
                self._inside, self._first = made, ranks[0]
        if len(hosts) > 1:
            self._across = dist.new_group([ranks[0] for ranks in hosts])

    def add_up(self, vector: torch.Tensor) -> None:
        dist.all_reduce(vector, group=self._inside)

    def spread(self, vector: torch.Tensor) -> None:
        dist.broadcast(vector, self._first, group=self._inside)

    def swap(self, came: torch.Tensor, sent: torch.Tensor) -> None:
        dist.all_to_all_single(came, sent, group=self._across)

    def collect(self, came: torch.Tensor, own: torch.Tensor) -> None:
        _all_gather(came.view(-1), own, group=self._across)


class Wire:
    """The state of `compress`: the form of the wire, and where the ranks are.

    Blocking and collective over the default group, which has to be that of the model: it makes
    groups for the ranks of each host, and one for the first ranks of all hosts.

    Args:
        form: a name of `gradred.WIRES`.
        feedback: whether nothing is lost in the long run (error feedback: Seide et al., 2014;
            Tang et al., "DoubleSqueeze", 2019). The first rank of each host keeps a float32 number
            for each parameter.
        ranks: how to reach others than those of the default group.

    Raises:
        gradred.UsageError: there is no such form, or the ranks' arguments differ.
    """

    def __init__(self, form: str, *, feedback: bool = False, ranks: Ranks | None = None) -> None:
        self._ranks = ranks or _RanksOfTorch()
        everyone = self._ranks.gather_objects((form, feedback, socket.gethostname()))
        require_alike([one for one, _, _ in everyone], "Wire", "form")
        require_alike([one for _, one, _ in everyone], "Wire", "feedback")
        require_form(form, "Wire")
        self.form, self.size = form, len(everyone)
        self._owed: dict[torch.nn.Parameter, torch.Tensor] | None = {} if feedback else None
        on_host: dict[str, list[int]] = {}
        for rank, (_, _, host) in enumerate(everyone):
            on_host.setdefault(host, []).append(rank)
        hosts = list(on_host.values())
        own = next(one for one in hosts if self._ranks.rank in one)
        self._hosts, self._place, self._alone = len(hosts), hosts.index(own), len(own) == 1
        self._sends = self._ranks.rank == own[0]
        self._ranks.divide(hosts)

    def average(self, vector: torch.Tensor, parameters: Sequence[torch.nn.Parameter] = ()) -> None:
        """Replace a flat float32 tensor of the CPU by the mean of all ranks'. Blocks.

        Args:
            vector: the gradients of the parameters, one after another.
            parameters: for feedback; without any there is none.
        """
        if not self._alone:
            self._ranks.add_up(vector)
        vector /= self.size  # before it is encoded, which has a limit
        if self._hosts > 1:
            if self._sends:
                self._exchange(vector, parameters)
            if not self._alone:
                self._ranks.spread(vector)

    def reset(self) -> None:
        """Forget what is owed, as after loading a checkpoint."""
        if self._owed is not None:
            self._owed.clear()

    def _exchange(self, vector: torch.Tensor, parameters: Sequence[torch.nn.Parameter]) -> None:
        numbers, owed = vector.numpy(), None
        if self._owed is not None and parameters:
            pieces = [self._owed.get(one, torch.zeros(one.numel())) for one in parameters]
            owed = torch.cat(pieces)
            self._owed.update(zip(parameters, owed.split([*map(len, pieces)]), strict=True))
        wanted = None if owed is None else owed.numpy()
        parts = Parts(self.form, numbers, numbers, self._hosts, self._place, wanted)
        came = torch.from_numpy(parts.came)
        parts.encode()
        self._ranks.swap(came, torch.from_numpy(parts.sent))
        for host in range(self._hosts):
            parts.add(host)
        self._ranks.collect(came, torch.from_numpy(parts.encode_sum()))
        parts.decode()


def compress(state: Wire, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average gradients over a compressed wire: a hook of DistributedDataParallel.

    Blocks until the bucket's mean is there. All ranks get the same bits.

    Args:
        state: the form of the wire.
        bucket: torch's bucket, of float32.

    Raises:
        gradred.UsageError: the gradients are of another type.
    """
    buffer = bucket.buffer()
    if buffer.dtype is not torch.float32:
        found = f"a compressed wire carries float32, not {buffer.dtype}"
        raise UsageError("compress", found, "Leave the hook out")
    vector = buffer.cpu() if buffer.is_cuda else buffer
    state.average(vector.detach(), bucket.parameters())
    if vector is not buffer:
        buffer.copy_(vector)
    ended: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[buffer.device] if buffer.is_cuda else []
    )
    ended.set_result(buffer)
    return ended


# torch compares a hook's annotations, if there are any, with its classes, not with texts.
compress.__annotations__ = {}
