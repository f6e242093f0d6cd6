"""Training by each peer: DistributedDataParallel, gradred.torch, mpi4py by hand, or no exchange."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.utils as utils
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

import gradred.torch as horovod
from gradred_lab.train.framework import Cell, Trial, Vector
from gradred_lab.train.pytorch import precision
from gradred_lab.train.pytorch.models.network import Network

RATE, MOMENTUM = 0.001, 0.9

_OPTIONS = inspect.signature(DistributedDataParallel).parameters
_SYNCHRONISE = next(
    name for name in ("forward_sync_buffers", "broadcast_buffers") if name in _OPTIONS
)
"""The option by which forward passes synchronise buffers; newer versions of PyTorch renamed it."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a rank trains."""

    world: Any
    device: Any
    groups: dict[str, Any]
    """The groups of torch.distributed, by backend."""


class Batch(NamedTuple):
    """What all trials of a rank begin with, and train on."""

    inputs: tuple[Any, ...]
    targets: tuple[Any, ...]
    first: list[Any]
    """The first values of the parameters."""
    seed: Callable[[], None]
    """Sets the seed of the random numbers that dropout draws."""


def flat(network: Any) -> Vector:
    """All parameters in one vector, as a copy."""
    values = [one.detach().reshape(-1) for one in network.parameters()]
    vector: Vector = torch.cat(values).float().cpu().numpy()
    return vector


class _Local:
    """A step without exchange; subclasses add one."""

    def __init__(self, network: Network, batch: Batch, cell: Cell, place: Place) -> None:
        self._network, self._batch, self._cell, self._place = network, batch, cell, place
        self._optimizer = self._wrapped_optimizer(
            torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
        )
        self._forward = self._wrapped(network)
        if cell.compiled:
            self._forward = torch.compile(self._forward)
        self._loss: Any = None
        self._stamps: list[Any] = []

    def _wrapped(self, network: Network) -> Any:
        return network

    def _wrapped_optimizer(self, optimizer: Any) -> Any:
        return optimizer

    def _exchange(self) -> None:
        """Average the gradients, unless that has happened in the backward pass."""

    def step(self) -> None:
        self._optimizer.zero_grad()
        inputs, targets = self._batch.inputs, self._batch.targets
        with precision.context(self._cell.precision, self._place.device.type):
            self._loss = self._network.loss(self._forward(*inputs), targets)
        self._loss.backward()
        self._exchange()
        self._optimizer.step()

    def stamp(self) -> None:
        if self._place.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._stamps.append(event)
        else:
            self._stamps.append(time.perf_counter())

    def stamps(self) -> list[float]:
        found, self._stamps = self._stamps, []
        if self._place.device.type != "cuda":
            return found
        torch.cuda.synchronize()
        return [1e-3 * found[0].elapsed_time(one) for one in found]

    def rewind(self) -> None:
        with torch.no_grad():
            values = zip(self._network.parameters(), self._batch.first, strict=True)
            for mine, first in values:
                mine.copy_(first)
        self._optimizer.state.clear()
        self._batch.seed()

    def parameters(self) -> Vector:
        return flat(self._network)

    def loss(self) -> float:
        return float(self._loss.detach())

    def close(self) -> None:
        del self._network, self._optimizer, self._forward, self._loss
        gc.collect()


class _Ddp(_Local):
    """DistributedDataParallel with PyTorch's defaults.

    Statistics of batch normalisation stay each rank's own, as with every other peer.
    """

    backend = ""

    def _wrapped(self, network: Network) -> Any:
        group = self._place.groups[self.backend]
        own = {_SYNCHRONISE: False}
        return DistributedDataParallel(network, process_group=group, **own)


class _Gloo(_Ddp):
    backend = "gloo"


class _Gradred(_Ddp):
    backend = "gradred"


class _Horovod(_Local):
    """gradred.torch, as a Horovod program uses it."""

    def _wrapped_optimizer(self, optimizer: Any) -> Any:
        names = self._network.named_parameters()
        return horovod.DistributedOptimizer(optimizer, named_parameters=names)


class _ByHand(_Local):
    """What programs with mpi4py do: one vector, one call after the backward pass, and back."""

    def _exchange(self) -> None:
        gradients = [one.grad for one in self._network.parameters()]
        vector = utils.parameters_to_vector(gradients)
        array = vector.cpu().numpy()
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)
        array /= np.float32(self._place.world.size)
        utils.vector_to_parameters(torch.from_numpy(array).to(self._place.device), gradients)


class _ByHandWithGradred(_Local):
    """Averages by hand with gradred's communicator, which takes tensors of the device too."""

    def _exchange(self) -> None:
        gradients = [one.grad for one in self._network.parameters()]
        vector = utils.parameters_to_vector(gradients)
        self._place.world.Allreduce(MPI.IN_PLACE, vector)
        vector /= self._place.world.size
        utils.vector_to_parameters(vector, gradients)


_Start = Callable[[Network, Batch, Cell, Place], Trial]

STARTS: dict[str, _Start] = {
    "single": _Local,
    "compute": _Local,
    "ddp-gloo": _Gloo,
    "ddp-gradred": _Gradred,
    "horovod": _Horovod,
    "mpi4py": _ByHand,
    "mpi4py-gradred": _ByHandWithGradred,
}
"""What trains, by peer."""
