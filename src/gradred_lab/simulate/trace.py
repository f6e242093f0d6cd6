"""A recorded trace of a training program: what one iteration does, tensor by tensor."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradred.errors import UsageError
from gradred_lab.simulate.work import Work

SCHEMA = "gradred-simulate-trace/1"


@dataclass(frozen=True)
class Gradient:
    """A tensor, in the order in which backward makes the gradients; seconds of its own."""

    name: str
    elements: int
    itemsize: int
    forward_s: float
    backward_s: float
    dtype: str = ""
    """Empty in traces that were recorded before gradients had it."""


@dataclass(frozen=True)
class Trace:
    """Medians over iterations of one process, of several that ran beside each other.

    `load_s` is from one step's end to forward: the program fetches a batch, and the device waits.
    `update_s` is what follows the last gradient. `iterations_s` are whole iterations without hooks,
    by process; processes that ran at the same time have the same places. `copy_s_per_byte` is what
    the device takes to copy gradients in its memory. `packs`: the program copies them into
    buckets itself, so that backward and update have the time of these copies.
    """

    program: str
    device: str
    batch: str
    gradients: tuple[Gradient, ...]
    load_s: float
    update_s: float
    iterations_s: tuple[tuple[float, ...], ...]
    copy_s_per_byte: float = 0.0
    packs: bool = False
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Machine, versions and date."""

    @property
    def copies(self) -> int:
        """Processes that ran beside each other."""
        return len(self.iterations_s)

    @property
    def iteration_s(self) -> float:
        """The median over all processes."""
        return statistics.median(one for own in self.iterations_s for one in own)

    @property
    def late_s(self) -> float:
        """How much later than the median the last of the processes ends an iteration."""
        count = min(map(len, self.iterations_s))
        lasts = [max(own[i] for own in self.iterations_s) for i in range(count)]
        return max(0.0, statistics.median(lasts) - self.iteration_s)

    def work(self) -> Work:
        """This record for the graph of an iteration, scaled to iterations without hooks."""
        forward = np.array([one.forward_s for one in self.gradients])
        backward = np.array([one.backward_s for one in self.gradients])
        hooked = self.load_s + self.update_s + float(forward.sum() + backward.sum())
        scale = self.iteration_s / hooked
        return Work(
            name=self.program,
            nbytes=np.array([float(one.elements * one.itemsize) for one in self.gradients]),
            forward=forward * scale,
            backward=backward * scale,
            types=tuple(one.dtype or f"{one.itemsize} bytes" for one in self.gradients),
            update=self.update_s * scale,
            fetch=self.load_s * scale,
            late=self.late_s if self.copies > 1 else 0.0,
            packing=0.0 if self.packs else self.copy_s_per_byte,
        )

    def write(self, path: Path) -> None:
        """Write the file that `read` reads."""
        record = {"schema": SCHEMA, **dataclasses.asdict(self)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Trace:
    """Read a trace.

    Raises:
        UsageError: there is no such file, or it is no trace; the message names line and column.
    """
    asked, remedy = f"--trace {path}", "Name a file that gradred simulate record has written"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(asked, f"it cannot be read ({error.strerror})", remedy) from error
    except json.JSONDecodeError as error:
        found = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise UsageError(asked, found, remedy) from error
    except UnicodeDecodeError as error:
        raise UsageError(asked, f"it is not text ({error})", remedy) from error
    try:
        made = _made(record)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        found = f"it lacks what a trace has ({type(error).__name__}: {error})"
        raise UsageError(asked, found, remedy) from error
    return made


def _made(record: dict[str, Any]) -> Trace:
    """The trace of a record; errors name what of it is not as it should be."""
    if record.pop("schema") != SCHEMA:
        raise ValueError("its schema is another one")
    for name in ("load_s", "update_s"):
        _require(name, record[name], 0)
    _require("copy_s_per_byte", record.get("copy_s_per_byte", 0), 0)
    if not isinstance(record.get("packs", False), bool):
        raise ValueError(f"packs is {record['packs']!r:.40}, not true or false")
    for i, one in enumerate(record["gradients"]):
        for name, least in _OF_A_GRADIENT.items():
            _require(f"gradients[{i}].{name}", one.get(name), least)
        if not isinstance(one.get("dtype", ""), str):
            raise ValueError(f"gradients[{i}].dtype is {one['dtype']!r:.40}, no text")
    for i, own in enumerate(record["iterations_s"]):
        for k, seconds in enumerate(own):
            _require(f"iterations_s[{i}][{k}]", seconds, 0)
    record["gradients"] = tuple(Gradient(**one) for one in record["gradients"])
    record["iterations_s"] = tuple(map(tuple, record["iterations_s"]))
    made = Trace(**record)
    if not made.gradients or not made.iterations_s or not all(made.iterations_s):
        raise ValueError("it has no gradients or no iterations")
    if made.work().seconds <= 0:
        raise ValueError("its iterations take no time")
    return made


_OF_A_GRADIENT = {"elements": 1, "itemsize": 1, "forward_s": 0, "backward_s": 0}
"""Numbers of a gradient, and the least of each."""


def _require(where: str, value: object, least: int) -> None:
    """Raise ValueError unless it is a finite number that is large enough."""
    if not isinstance(value, (int, float)) or not least <= value < math.inf:
        raise ValueError(f"{where} is {value!r:.40}, no number of at least {least}")


def merge(traces: Sequence[Trace]) -> Trace:
    """One trace of processes that ran beside each other: medians by tensor.

    Raises:
        UsageError: the processes had other gradients, or made them in another order.
    """
    first = traces[0]
    names = [[one.name for one in trace.gradients] for trace in traces]
    if any(own != names[0] for own in names):
        found = "its processes made other gradients, or in another order"
        raise UsageError("the program", found, "Give all the same model")
    gradients = tuple(
        dataclasses.replace(
            own[0],
            forward_s=statistics.median(one.forward_s for one in own),
            backward_s=statistics.median(one.backward_s for one in own),
        )
        for own in zip(*(trace.gradients for trace in traces), strict=True)
    )
    return dataclasses.replace(
        first,
        gradients=gradients,
        load_s=statistics.median(trace.load_s for trace in traces),
        update_s=statistics.median(trace.update_s for trace in traces),
        copy_s_per_byte=statistics.median(trace.copy_s_per_byte for trace in traces),
        iterations_s=tuple(own for trace in traces for own in trace.iterations_s),
    )
