"""One measured or asked-for throughput of training: a line of the table of iterations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradred.errors import UsageError
from gradred_lab.simulate import divisions, networks, rates, tables
from gradred_lab.simulate.tables import Column

_GIVEN = {
    "source": Column(tables.words, may_lack=True),
    "cluster": Column(tables.words),
    "model": Column(tables.name),
    "batch": Column(tables.optional_count),
    "precision": Column(tables.words),
    "network": Column(tables.words),
    "scheduler": Column(tables.words),
    "framework": Column(tables.words),
    "options": Column(tables.words, may_lack=True),
    "gpus": Column(tables.processes),
    "nodes": Column(tables.processes),
    "parameters": Column(tables.optional_count, may_lack=True),
    "tensors": Column(tables.optional_count, may_lack=True),
    "gradient_bytes": Column(tables.optional_count, may_lack=True),
    **divisions.COLUMNS,
}
FIT = {
    **_GIVEN,
    "images_per_s": Column(tables.time),
    "std": Column(tables.optional_spread, may_lack=True),
}
ROWS = {**_GIVEN, "images_per_s": Column(tables.ignored, may_lack=True)}

_ASCENDING = (("nodes", "gpus"),)


def _missing(record: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Say what contradicts itself, or that a network has no rate or a model no size."""
    if wrong := divisions.contradiction(record):
        return wrong
    known = networks.find(record["model"], record["options"]).is_known
    if not known and not record["parameters"]:
        found = f"no network is called {record['model']!r}, and its size is not given"
        names = ", ".join(networks.names())
        remedy = f"Fill the column parameters, or name {names}, or h4096 l32 s8192 v128256"
        return "model", found, remedy
    if record["nodes"] == 1 or rates.between_nodes(record["network"]):
        return None
    found = (
        f"it is {record['network']!r}, with no rate of the network between {record['nodes']} nodes"
    )
    return "network", found, "Write for example '8x 400 Gb InfiniBand per node', or 4x HDR"


@dataclass(frozen=True)
class Training:
    """A training somewhere; `batch` is of one GPU, or of those that share a replica."""

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
    parameters: int | None = None
    """The elements of all gradients, of a model whose network is not known by its name."""
    tensors: int | None = None
    gradient_bytes: int | None = None
    """What all gradients have on the wire."""
    sharding: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    micro_batches: int | None = None
    global_batch: int | None = None
    """Of all GPUs, if it stays the same on more of them (strong scaling)."""

    def columns(self) -> dict[str, Any]:
        """The values by column, without the columns about a model's size that are empty."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}

    @property
    def setting(self) -> Training:
        """This training without its numbers of GPUs and nodes, which are 1."""
        return dataclasses.replace(self, gpus=1, nodes=1, batch=self.global_batch or self.batch)

    @property
    def stages(self) -> int:
        """Parts of the model that follow each other."""
        return self.pipeline_parallel or 1

    @property
    def replica(self) -> int:
        """The GPUs of a replica of the model."""
        return (self.tensor_parallel or 1) * self.stages

    @property
    def replicas(self) -> int:
        """The replicas of the model."""
        return self.gpus // self.replica

    @property
    def is_divided(self) -> bool:
        """Whether GPUs share a replica, or its gradients, parameters or optimizer."""
        return self.replica > 1 or self.sharding is not None


@dataclass(frozen=True)
class Speed:
    """A training and the images (or sequences) per second of all GPUs together."""

    training: Training
    images_per_s: float
    std: float | None

    @property
    def seconds(self) -> float:
        """The seconds of one iteration."""
        return self.training.replicas * self.training.batch / self.images_per_s


def read_fit(path: str) -> list[Speed]:
    """The measurements to calibrate by.

    Raises:
        UsageError: the file is not such a table, or has no line but the heading.
    """
    records = tables.read(path, FIT, _ASCENDING, _missing, tables.MOST_MEASURED)
    if not records:
        found = "it has a heading and no measurement"
        raise UsageError(f"{path}, line 2", found, "Give a line per measurement")
    return [Speed(_training(record), record["images_per_s"], record["std"]) for record in records]


def read_rows(path: str) -> list[Training]:
    """The trainings to predict, in the order of the file; their speeds are not looked at."""
    return [_training(record) for record in tables.read(path, ROWS, _ASCENDING, _missing)]


def _training(record: dict[str, Any]) -> Training:
    given = {name: record[name] for name in _GIVEN}
    if given["batch"] is None:
        replica = (given["tensor_parallel"] or 1) * (given["pipeline_parallel"] or 1)
        given["batch"] = given["global_batch"] * replica // given["gpus"]
    return Training(**given)
