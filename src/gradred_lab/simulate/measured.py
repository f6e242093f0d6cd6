"""One measured or asked-for allreduce: a line of the table of clusters."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any

from gradred.errors import UsageError
from gradred_lab.simulate import tables
from gradred_lab.simulate.tables import Column


def _segment(text: str) -> str:
    """Bytes of a segment, `n/p`, or nothing where messages are not cut."""
    if text not in ("", "n/p"):
        try:
            tables.count(text)
        except ValueError:
            raise ValueError(f"is {text!r}, neither a number of bytes nor n/p nor empty") from None
    return text


_GIVEN = {
    "system": Column(tables.name),
    "nodes": Column(tables.processes),
    "ranks": Column(tables.processes),
    "buffer": Column(tables.words),
    "library": Column(tables.words),
    "impl": Column(tables.words),
    "algorithm": Column(tables.name),
    "segment_bytes": Column(_segment),
    "bytes": Column(tables.size),
    "run": Column(tables.words, may_lack=True),
    "note": Column(tables.words, may_lack=True),
}
_AS_NAMED = [name for name in _GIVEN if name != "segment_bytes"]
FIT = {
    **_GIVEN,
    "median_us": Column(tables.time),
    "p10_us": Column(tables.optional_time, may_lack=True),
    "p90_us": Column(tables.optional_time, may_lack=True),
    "n_samples": Column(tables.optional_count, may_lack=True),
}
ROWS = {**_GIVEN, "median_us": Column(tables.ignored, may_lack=True)}

_ASCENDING = (("nodes", "ranks"),)


@dataclass(frozen=True)
class Case:
    """An allreduce somewhere: what the model knows before it predicts.

    `segment` is the text of the column: bytes, `n/p`, or empty where a message is sent whole.
    """

    system: str
    nodes: int
    ranks: int
    buffer: str
    library: str
    impl: str
    algorithm: str
    segment: str
    bytes: int
    run: str
    note: str

    @property
    def ranks_per_node(self) -> float:
        """Ranks of one node."""
        return max(1.0, self.ranks / self.nodes)

    @property
    def ports(self) -> int:
        """Ports of a node that the algorithm drives at once; 1 if the notes do not give it."""
        found = re.search(r"(\d+) ports?\b", self.note) or re.match(r"trix(\d+)", self.algorithm)
        return max(1, int(found[1])) if found else 1

    @property
    def torus(self) -> tuple[int, ...]:
        """Sides of the torus, empty if the note gives none."""
        found = re.search(r"torus (\d+(?:x\d+)*)", self.note)
        return tuple(int(side) for side in found[1].split("x")) if found else ()

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What makes two algorithms the same one at any scale, size and time."""
        return self.impl, self.algorithm, self.segment, self.ports

    @property
    def day(self) -> float | None:
        """The day of the run, counted from any fixed one; None if `run` has no date."""
        found = re.match(r"(\d{4})[_-](\d\d)[_-](\d\d)", self.run)
        try:
            date = found and datetime.date(int(found[1]), int(found[2]), int(found[3]))
        except ValueError:
            return None
        return float(date.toordinal()) if date else None


@dataclass(frozen=True)
class Measured:
    """A case and its median time, with the tenth and ninetieth percentile where they are known."""

    case: Case
    us: float
    low_us: float | None
    high_us: float | None
    samples: int | None


def read_fit(path: str) -> list[Measured]:
    """The measurements to calibrate by.

    Raises:
        UsageError: the file is not such a table, or has no line but the heading.
    """
    spread = (("p10_us", "median_us"), ("median_us", "p90_us"))
    records = tables.read(path, FIT, (*_ASCENDING, *spread), most=tables.MOST_MEASURED)
    if not records:
        found = "it has a heading and no measurement"
        raise UsageError(f"{path}, line 2", found, "Give a line per measurement")
    more = ("median_us", "p10_us", "p90_us", "n_samples")
    return [Measured(_case(record), *(record[name] for name in more)) for record in records]


def read_rows(path: str) -> list[Case]:
    """The cases to predict, in the order of the file; their times are not looked at."""
    return [_case(record) for record in tables.read(path, ROWS, _ASCENDING)]


def _case(record: dict[str, Any]) -> Case:
    return Case(segment=record["segment_bytes"], **{name: record[name] for name in _AS_NAMED})
