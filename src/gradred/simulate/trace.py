"""A recorded trace of a training program: what one iteration does, tensor by tensor."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradred.errors import UsageError, explain
from gradred.simulate.work import Work

SCHEMA = "gradred-simulate-trace/1"


@dataclass(frozen=True)
class Gradient:
    """A tensor, in the order in which backward makes the gradients; seconds of its own."""

    name: str
    elements: int
    itemsize: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Trace:
    """Medians over iterations of one process, of several that ran beside each other.

    `load_s` is from one step's end to forward: the program fetches a batch, and the device waits.
    `update_s` is what follows the last gradient. `iterations_s` are whole iterations without hooks,
    by process; processes that ran at the same time have the same places.
    """

    program: str
    device: str
    batch: str
    gradients: tuple[Gradient, ...]
    load_s: float
    update_s: float
    iterations_s: tuple[tuple[float, ...], ...]
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
        """The same as the graph of an iteration takes it, scaled to iterations without hooks."""
        forward = np.array([one.forward_s for one in self.gradients])
        backward = np.array([one.backward_s for one in self.gradients])
        hooked = self.load_s + self.update_s + float(forward.sum() + backward.sum())
        scale = self.iteration_s / hooked
        return Work(
            name=self.program,
            nbytes=np.array([float(one.elements * one.itemsize) for one in self.gradients]),
            forward=forward * scale,
            backward=backward * scale,
            update=self.update_s * scale,
            fetch=self.load_s * scale,
            late=self.late_s if self.copies > 1 else 0.0,
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
        raise UsageError(explain(asked, f"it cannot be read ({error.strerror})", remedy)) from error
    except json.JSONDecodeError as error:
        found = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise UsageError(explain(asked, found, remedy)) from error
    except UnicodeDecodeError as error:
        raise UsageError(explain(asked, f"it is not text ({error})", remedy)) from error
    try:
        if record.pop("schema") != SCHEMA:
            raise ValueError("its schema is another one")
        record["gradients"] = tuple(Gradient(**one) for one in record["gradients"])
        record["iterations_s"] = tuple(tuple(map(float, own)) for own in record["iterations_s"])
        made = Trace(**record)
        if not made.gradients or not all(made.iterations_s) or made.iteration_s <= 0:
            raise ValueError("it has no gradients or no iterations")
        made.work()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"it lacks what a trace has ({type(error).__name__}: {error})"
        raise UsageError(explain(asked, found, remedy)) from error
    return made


def merge(traces: Sequence[Trace]) -> Trace:
    """One trace of processes that ran beside each other: medians by tensor.

    Raises:
        UsageError: the processes had other gradients, or made them in another order.
    """
    first = traces[0]
    names = [[one.name for one in trace.gradients] for trace in traces]
    if any(own != names[0] for own in names):
        found = "its processes made other gradients, or in another order"
        raise UsageError(explain("the program", found, "Give all the same model"))
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
        iterations_s=tuple(own for trace in traces for own in trace.iterations_s),
    )
