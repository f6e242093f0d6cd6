"""One measured or asked-for throughput of training: a line of the table of iterations."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gradred.errors import UsageError
from gradred_lab.simulate import tables
from gradred_lab.simulate.tables import Column

_GIVEN = {
    "source": Column(tables.words, may_lack=True),
    "cluster": Column(tables.words),
    "model": Column(tables.name),
    "batch": Column(tables.count),
    "precision": Column(tables.words),
    "network": Column(tables.words),
    "scheduler": Column(tables.words),
    "framework": Column(tables.words),
    "options": Column(tables.words, may_lack=True),
    "gpus": Column(tables.count),
    "nodes": Column(tables.count),
}
FIT = {
    **_GIVEN,
    "images_per_s": Column(tables.time),
    "std": Column(tables.optional_spread, may_lack=True),
}
ROWS = {**_GIVEN, "images_per_s": Column(tables.ignored, may_lack=True)}

_ASCENDING = (("nodes", "gpus"),)


@dataclass(frozen=True)
class Training:
    """A training somewhere; `batch` is of one GPU."""

    source: str
    cluster: str
    model: str
    batch: int
    precision: str
    network: str
    scheduler: str
    framework: str
    options: str
    gpus: int
    nodes: int

    @property
    def setting(self) -> Training:
        """This training without its numbers of GPUs and nodes, which are 1."""
        return dataclasses.replace(self, gpus=1, nodes=1)


@dataclass(frozen=True)
class Speed:
    """A training and the images (or sequences) per second of all GPUs together."""

    training: Training
    images_per_s: float
    std: float | None

    @property
    def seconds(self) -> float:
        """The seconds of one iteration."""
        return self.training.gpus * self.training.batch / self.images_per_s


def read_fit(path: str) -> list[Speed]:
    """The measurements to calibrate by.

    Raises:
        UsageError: the file is not such a table, or has no line but the heading.
    """
    records = tables.read(path, FIT, _ASCENDING)
    if not records:
        found = "it has a heading and no measurement"
        raise UsageError(f"{path}, line 2", found, "Give a line per measurement")
    return [Speed(_training(record), record["images_per_s"], record["std"]) for record in records]


def read_rows(path: str) -> list[Training]:
    """The trainings to predict, in the order of the file; their speeds are not looked at."""
    return [_training(record) for record in tables.read(path, ROWS, _ASCENDING)]


def _training(record: dict[str, Any]) -> Training:
    return Training(**{name: record[name] for name in _GIVEN})
