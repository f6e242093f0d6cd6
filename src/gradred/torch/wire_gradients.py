"""Gradients over a compressed wire whose losses are added to the gradients of the next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradred.errors import UsageError
from gradred.horovod import basics
from gradred.horovod.objects import allgather_object
from gradred.horovod.process_sets import ProcessSet, global_process_set, register_all
from gradred.horovod.state import Place, state
from gradred.torch.gradients import GradientReduction, Parameter
from gradred.torch.groups import runs_of
from gradred.torch.mpi_ops import allgather, allreduce_, alltoall_async, broadcast_, synchronize
from gradred.torch_wire import Wire

_MOST_ELEMENTS = 8 << 20  # of a vector, unless a parameter has more


class _RanksOfHorovod:
    """All ranks, by process sets."""

    def __init__(self) -> None:
        self.rank = basics.rank()

    def gather_objects(self, one: Any) -> list[Any]:
        return allgather_object(one, "optimizer.wire")

    def divide(self, hosts: Sequence[Sequence[int]]) -> None:
        own = next(list(ranks) for ranks in hosts if self.rank in ranks)
        first = [ranks[0] for ranks in hosts]
        self._first = own[0]
        self._inside, self._across = ProcessSet(own), ProcessSet(first)
        if len(hosts) == 1:
            self._inside = global_process_set
        elif len(first) == basics.size():
            self._across = global_process_set
        sets = [self._inside] * (len(own) > 1) + [self._across] * (self.rank in first)
        register_all([one for one in sets if one is not global_process_set], None)

    def add_up(self, vector: torch.Tensor) -> None:
        allreduce_(vector, name="wire.inside", op=basics.Sum, process_set=self._inside)

    def spread(self, vector: torch.Tensor) -> None:
        broadcast_(vector, self._first, "wire.result", self._inside)

    def swap(self, came: torch.Tensor, sent: torch.Tensor) -> None:
        handle = alltoall_async(sent, name="wire.parts", process_set=self._across)
        came.copy_(synchronize(handle)[0])

    def collect(self, came: torch.Tensor, own: torch.Tensor) -> None:
        came.view(-1).copy_(allgather(own, "wire.sums", self._across))


class WireReduction(GradientReduction):
    """Averages the gradients of a step together, once `synchronize` finds all of them computed."""

    _wire: Wire | None = None
    _place: Place | None = None  # that the wire was made in

    @property
    def _copies(self) -> bool:
        return True

    def _start(self, parameter: Parameter) -> None:
        self._claim(parameter)
        self._handles[parameter] = None  # the gradient is not complete before the step

    def synchronize(self) -> None:
        """Block until all gradients are reduced. Gradients that this rank lacks count as zeros."""
        self._synchronized = True
        if not self._reduces:
            return
        parameters = sorted(self._left, key=self.names.__getitem__)
        for alike in runs_of(parameters, lambda _: 0, torch.Tensor.numel, _MOST_ELEMENTS):
            vector = torch.cat([self._numbers_of(one) for one in alike])
            self._wire_now().average(vector, alike)
            if self._how.op == basics.Sum:
                vector *= basics.size()
            for one, piece in zip(alike, vector.split([p.numel() for p in alike]), strict=True):
                if one.grad is not None:
                    one.grad.copy_(piece.view_as(one))
                elif one.requires_grad:  # zeros would move it by weight decay
                    one.grad = piece.view_as(one).to(one.device)
        self._begin_anew()

    def forget(self) -> None:
        """Discard reductions in flight, and what is owed."""
        super().forget()
        if self._wire is not None:
            self._wire.reset()

    def _numbers_of(self, parameter: Parameter) -> torch.Tensor:
        gradient = parameter.grad
        if gradient is None:
            return torch.zeros(parameter.numel())
        found = f"the gradient of {self.names[parameter]!r} is "
        if gradient.is_sparse:
            if not self._how.sparse_as_dense:
                raise UsageError("a compressed wire", f"{found}sparse", "Pass sparse_as_dense=True")
            parameter.grad = gradient = gradient.to_dense()
        if gradient.dtype is not torch.float32:
            remedy = "Leave the compression out"
            raise UsageError("a compressed wire", f"{found}of {gradient.dtype}", remedy)
        return gradient.detach().cpu().flatten()

    def _wire_now(self) -> Wire:
        """The wire. Elastic jobs change the number of ranks between steps: then nothing is owed."""
        place = state.here()
        if self._wire is None or self._place is not place:
            form = self._how.compression.form
            self._place, self._wire = place, Wire(form, feedback=True, ranks=_RanksOfHorovod())
        return self._wire
