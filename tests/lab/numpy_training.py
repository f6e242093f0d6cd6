"""A framework for `gradred train`, of NumPy alone: `--framework lab.numpy_training`.

It fits a linear model. The peer `wrong` exchanges nothing although it says so, `sum` does not
divide by the number of ranks, and the variable TRAIN_FAILS_AT names a model that cannot be made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

import gradred
from gradred.errors import UsageError
from gradred_lab.train.framework import Cell, Layers, Model, Peer, Vector

FAILS_AT = "TRAIN_FAILS_AT"


class Trial:
    def __init__(self, workload: Workload, peer: str) -> None:
        self._workload, self._peer = workload, peer
        self._values, self._stamps = workload.first(), []

    def step(self) -> None:
        x, y = self._workload.data
        self._residual = x @ self._values - y
        gradient = x.T @ self._residual / np.float32(len(y))
        self._values -= np.float32(0.1) * self._averaged(gradient)

    def _averaged(self, gradient: Vector) -> Vector:
        if self._peer == "gradred":
            return gradred.allreduce(gradient, op="avg")
        if self._peer == "sum":
            return gradred.allreduce(gradient)
        if self._peer == "mpi":
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, gradient)
            return gradient / np.float32(MPI.COMM_WORLD.size)
        return gradient

    def stamp(self) -> None:
        self._stamps.append(time.perf_counter())

    def stamps(self) -> list[float]:
        found, self._stamps = self._stamps, []
        return found

    def parameters(self) -> Vector:
        return self._values.copy()

    def rewind(self) -> None:
        self._values = self._workload.first()

    def loss(self) -> float:
        return float(np.mean(self._residual**2))

    def close(self) -> None:
        del self._values


class Workload:
    def __init__(self, cell: Cell, rank: int) -> None:
        self.parameters = max(1, round(1000 * cell.size.scale))
        drawn = np.random.default_rng(rank)
        x = drawn.standard_normal((cell.batch, self.parameters)) / np.sqrt(self.parameters)
        self.data = x.astype(np.float32), x.sum(1).astype(np.float32)

    def describe(self) -> dict[str, Any]:
        return {"optimizer": "gradient descent", "tensors": 1, "arithmetic": "float32"}

    def first(self) -> Vector:
        return np.zeros(self.parameters, np.float32)

    def start(self, peer: str) -> Trial:
        return Trial(self, peer)

    def layers(self) -> Layers:
        return Layers([self.parameters], [1.0], 0.5)

    def close(self) -> None:
        del self.data


class Session:
    def __init__(self, world: Any) -> None:
        self._world = world
        self._made = self._waits = 0

    def versions(self) -> dict[str, str]:
        return {"blas": "whatever NumPy has"}

    def devices(self) -> list[str]:
        return []

    def why_not(self, peer: str) -> str:
        return "it is there to be left out" if peer == "absent" else ""

    def zeros(self, count: int) -> Vector:
        self._made += 1
        return np.zeros(count, np.float32)

    def wait(self) -> None:
        self._waits += 1

    def open(self, cell: Cell) -> Workload:
        if os.environ.get(FAILS_AT) == cell.model:
            raise MemoryError(f"no room for {cell.model}")
        return Workload(cell, self._world.rank)

    def close(self) -> None:
        assert 0 < self._made < self._waits, "allreduces were timed in other memory"


class Numpy:
    models: ClassVar = {
        name: Model(f"{name} linear model", "rows", 1000, 8, ("scale",))
        for name in ("first", "second")
    }
    peers: ClassVar = {
        "single": Peer("one process", exchanges=False, everyone=False),
        "compute": Peer("without exchange", exchanges=False),
        "gradred": Peer("gradred's allreduce", by_gradred=True, bucket_bytes=1 << 20),
        "mpi": Peer("the MPI's"),
        "sum": Peer("gradred's allreduce, but not the mean", by_gradred=True),
        "wrong": Peer("every rank by itself, by mistake"),
        "absent": Peer("one that no ranks can train by"),
    }

    @staticmethod
    def check(models: Sequence[str], device: str, compiled: Sequence[bool]) -> None:
        if device != "cpu":
            raise UsageError(f"--device {device}: NumPy knows no devices. Leave it out.")

    @staticmethod
    def begin(world: Any, device: str) -> Session:
        return Session(world)


FRAMEWORK = Numpy()
