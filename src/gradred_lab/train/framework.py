"""How a framework plugs in: what it has to provide, and the table of those that do.

A framework is an object `FRAMEWORK` in a module, which loads the framework itself only in `begin`.
docs/train.md has an example.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gradred.errors import UsageError

Vector = NDArray[np.float32]

FRAMEWORKS = {"pytorch": "gradred_lab.train.pytorch"}
"""The table of frameworks: the module of each."""


@dataclasses.dataclass(frozen=True)
class Size:
    """How far models are reduced; 0 and 1 leave them as published."""

    scale: float = 1.0
    """A factor for widths (channels, hidden units, heads) and tables (vocabularies, people)."""
    image: int = 0
    """Pixels of each side."""
    sequence: int = 0
    """Tokens."""
    layers: int = 0
    """At most so many: of a transformer or Wide & Deep, or in each stage of a residual network."""


@dataclasses.dataclass(frozen=True)
class Model:
    """One row of a framework's table of models."""

    about: str
    unit: str
    """What a sample is: images, sequences, rows."""
    parameters: int
    """The number of parameters of the model as published."""
    batch: int
    """Samples of each rank in a step, if nothing else is asked for."""
    reads: tuple[str, ...]
    """The fields of `Size` that change it."""

    def reduction(self, size: Size) -> str:
        """What of a size differs from the published model: `scale 0.25, image 64`; or empty."""
        differing = [
            f"{name} {getattr(size, name):g}"
            for name in self.reads
            if getattr(size, name) != getattr(Size, name)
        ]
        return ", ".join(differing)


@dataclasses.dataclass(frozen=True)
class Peer:
    """One row of a framework's table of peers: a way to train data-parallel."""

    about: str
    exchanges: bool = True
    """Whether ranks exchange gradients."""
    everyone: bool = True
    """Whether all ranks train, or rank 0 alone."""
    by_gradred: bool = False
    """Whether gradred carries the exchange out."""
    bucket_bytes: int = 0
    """Gradients that share a message; 0: all of them, after the backward pass."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is trained: one cell of the matrix, on one number of ranks."""

    model: str
    batch: int
    precision: Literal["fp32", "bf16"] = "fp32"
    compiled: bool = False
    size: Size = Size()


class Layers(NamedTuple):
    """Gradients in the order in which the backward pass makes them."""

    elements: Sequence[int]
    ready: Sequence[float]
    """The share of the backward pass after which each is ready, up to 1."""
    backward_share: float
    """The share of the backward pass in the time of a step."""


class Trial(Protocol):
    """A model in training by one peer, from its first values; collective over the ranks."""

    def step(self) -> None:
        """Make a step: forward, backward, exchange, update. The device may still be at work."""

    def stamp(self) -> None:
        """Remember the time at which the work so far is done, without waiting for it."""

    def stamps(self) -> list[float]:
        """Wait for the device; return all remembered times in seconds, and forget them."""

    def parameters(self) -> Vector:
        """A copy of all parameters in one vector."""

    def rewind(self) -> None:
        """Go back to the first parameters and random numbers, as a new trial would begin."""

    def loss(self) -> float:
        """The loss of the last step on this rank."""

    def close(self) -> None:
        """Free the model."""


class Workload(Protocol):
    """The model and data of a cell. All trials begin with the same parameters on all ranks."""

    parameters: int
    """How many there are."""

    def describe(self) -> dict[str, Any]:
        """What a record says of it beside the cell: the optimizer and the like."""

    def first(self) -> Vector:
        """The parameters before the first step, in one vector."""

    def start(self, peer: str) -> Trial:
        """Start to train by a peer."""

    def layers(self) -> Layers:
        """Watch the gradients of some steps without exchange."""

    def close(self) -> None:
        """Free the model and the data."""


class Session(Protocol):
    """The framework on one rank of a job."""

    def versions(self) -> dict[str, str]:
        """Versions, and the settings that matter to speed."""

    def devices(self) -> list[str]:
        """The name of this rank's device; empty for the processor."""

    def why_not(self, peer: str) -> str:
        """Why these ranks cannot train by a peer; empty if they can."""

    def zeros(self, count: int) -> Any:
        """An array of so many float32 in the memory of this rank's device."""

    def wait(self) -> None:
        """Wait until the device has done all its work."""

    def open(self, cell: Cell) -> Workload:
        """Make the model and the data of this rank."""

    def close(self) -> None:
        """Leave all groups; collective."""


class Framework(Protocol):
    """What a module provides as `FRAMEWORK`."""

    models: Mapping[str, Model]
    peers: Mapping[str, Peer]
    check: Callable[[Sequence[str], str, Sequence[bool]], None]
    """Raises UsageError if a package that it or one of these models needs is not installed, or it
    has not such a device (`cpu`, `cuda`), or cannot compile where that is asked for."""
    begin: Callable[[Any, str], Session]
    """Load it on a rank, with the communicator of all ranks and the device; collective."""


def find(name: str) -> Framework:
    """The framework of a name of the table, or of a module that has `FRAMEWORK`.

    Raises:
        UsageError: there is none.
    """
    asked = f"--framework {name}"
    remedy = f"Name one of {', '.join(FRAMEWORKS)}, or a module that has FRAMEWORK"
    try:
        found: Framework = importlib.import_module(FRAMEWORKS.get(name, name)).FRAMEWORK
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(asked, f"there is none ({error})", remedy) from error
    return found
