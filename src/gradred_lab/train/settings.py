"""What `gradred train` measures: the matrix, the protocol of measurement, and the prediction."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from gradred.errors import UsageError
from gradred_lab.train import framework
from gradred_lab.train.framework import Cell, Framework, Size


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How each peer is measured."""

    skip: int = 20
    """Steps at the start of each repeat that do not count."""
    steps: int = 100
    """Steps that are averaged."""
    repeats: int = 5
    """Each begins with new models. The result is the median."""


class Quick(NamedTuple):
    """What `--quick` takes in place of the defaults."""

    size: Size = Size(scale=0.25, image=64, sequence=32, layers=4)
    protocol: Protocol = Protocol(skip=2, steps=5, repeats=3)


QUICK = Quick()


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that decides about the results; `check` raises an error if it is impossible."""

    framework: str
    models: tuple[str, ...]
    ranks: tuple[int, ...]
    peers: tuple[str, ...]
    batches: tuple[int, ...] = ()
    """Samples of each rank in a step; empty: the model's own number."""
    precisions: tuple[Literal["fp32", "bf16"], ...] = ("fp32",)
    compiled: tuple[bool, ...] = (False,)
    device: str = "cpu"
    size: Size = Size()  # noqa: RUF009 (it is frozen)
    protocol: Protocol = Protocol()
    hosts: str = ""
    """The hosts of the ranks, as the user wrote them."""
    simulated_hosts: tuple[int, ...] = ()
    """Numbers of hosts that the simulator adds to the report."""
    net: str = "10GbE"

    def cells(self) -> Iterator[Cell]:
        """The matrix on one number of ranks, in its order."""
        models = framework.find(self.framework).models
        for model, precision, compiled in itertools.product(
            self.models, self.precisions, self.compiled
        ):
            for batch in self.batches or (models[model].batch,):
                yield Cell(model, batch, precision, compiled, self.size)

    def check(self) -> Framework:
        """Return the framework, or raise UsageError for what it lacks here."""
        found = framework.find(self.framework)
        for option, asked, known in (
            ("--models", self.models, found.models),
            ("--peers", self.peers, found.peers),
        ):
            for name in asked:
                if name not in known:
                    remedy = f"Name some of {', '.join(known)}"
                    raise UsageError(f"{option} {name}", f"{self.framework} has none such", remedy)
        found.check(self.models, self.device, self.compiled)
        return found

    def record(self) -> dict[str, Any]:
        """Return the settings as a record holds them."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return values

    @classmethod
    def from_record(cls, values: dict[str, Any]) -> Settings:
        """What `record` has written."""
        names = {one.name for one in dataclasses.fields(cls)} - {"size", "protocol"}
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name in names
        }
        return cls(**plain, size=Size(**values["size"]), protocol=Protocol(**values["protocol"]))
