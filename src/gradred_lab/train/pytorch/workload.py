"""The model and the data of a cell, in PyTorch."""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from typing import Any

import torch

from gradred_lab.train.framework import Cell, Layers, Trial, Vector
from gradred_lab.train.pytorch import precision, trial
from gradred_lab.train.pytorch.models.network import Network
from gradred_lab.train.pytorch.trial import Batch, Place

_WATCHED = 3  # steps of which the gradients are watched, after as many that warm up


class TorchWorkload:
    """A network with its first values, and one batch of this rank.

    Args:
        network: the master copy; trials train copies of it.
        cell: what is trained.
        place: this rank.
    """

    def __init__(self, network: Network, cell: Cell, place: Place) -> None:
        self._network, self._cell, self._place = network.to(place.device), cell, place
        self.parameters = sum(one.numel() for one in network.parameters())
        numbers = torch.Generator().manual_seed(1 + place.world.rank)
        inputs, targets = (
            tuple(one.to(place.device) for one in part)
            for part in network.sample(cell.batch, numbers)
        )
        first = [one.detach() for one in network.parameters()]
        self._batch = Batch(inputs, targets, first, self._seed)

    def describe(self) -> dict[str, Any]:
        """The optimizer, the inputs' shapes, and what a precision means."""
        return {
            "optimizer": f"SGD, rate {trial.RATE:g}, momentum {trial.MOMENTUM:g}",
            "inputs": [list(one.shape) for one in self._batch.inputs],
            "tensors": len(list(self._network.parameters())),
            "arithmetic": precision.text(self._cell.precision, self._place.device.type),
        }

    def first(self) -> Vector:
        """The parameters before the first step."""
        return trial.flat(self._network)

    def start(self, peer: str) -> Trial:
        """Train a copy by a peer."""
        self._seed()
        return trial.STARTS[peer](self._copy(), self._batch, self._cell, self._place)

    def layers(self) -> Layers:
        """Watch when each gradient is complete, on this rank alone."""
        self._seed()
        network = self._copy()
        found = [self._watch(network) for _ in range(2 * _WATCHED)][_WATCHED:]
        order = sorted(found[-1][0], key=lambda name: found[-1][0][name])
        sizes = {name: one.numel() for name, one in network.named_parameters()}
        ready = [statistics.median(times[name] for times, _ in found) for name in order]
        share = statistics.median(share for _, share in found)
        highest, rising = 0.0, []
        for one in ready:
            highest = max(highest, min(1.0, one))
            rising.append(round(highest, 5))
        return Layers([sizes[name] for name in order], rising, share)

    def _watch(self, network: Network) -> tuple[dict[str, float], float]:
        """Make a step; returns the share of backward at each gradient, and that of the step."""
        times: dict[str, float] = {}

        def watch(name: str) -> Any:
            def ready(_: Any) -> None:
                times[name] = self._now()

            return ready

        hooks = [
            one.register_post_accumulate_grad_hook(watch(name))
            for name, one in network.named_parameters()
        ]
        inputs, targets = self._batch.inputs, self._batch.targets
        begin = self._now()
        with precision.context(self._cell.precision, self._place.device.type):
            loss = network.loss(network(*inputs), targets)
        between = self._now()
        loss.backward()
        end = self._now()
        for hook in hooks:
            hook.remove()
        network.zero_grad()
        backward = end - between
        return {name: (at - between) / backward for name, at in times.items()}, backward / (
            end - begin
        )

    def _now(self) -> float:
        if self._place.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _seed(self) -> None:
        """Let dropout draw the same values in every trial, others on every rank."""
        torch.manual_seed(1000 + self._place.world.rank)

    def _copy(self) -> Network:
        made: Network = copy.deepcopy(self._network)
        made.train()
        return made

    def close(self) -> None:
        """Free the model and the data."""
        del self._network, self._batch
        with contextlib.suppress(AttributeError):
            torch.compiler.reset()
