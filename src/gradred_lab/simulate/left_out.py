"""Errors of rows that were left out: of one step from what was measured, system by system."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradred_lab.simulate import accuracy
from gradred_lab.simulate.accuracy import NORMAL, QUANTILE, Trial

FEW = 3
"""Rows from which on an error is known."""
_ENOUGH = 10  # rows from which on a system's own are taken alone


@dataclass(frozen=True)
class LeftOut:
    """A row that was predicted from others.

    Attributes:
        system: where it was measured.
        step: where the prediction goes from what was kept.
        kin: rows of one kin are off for one reason, so none of them makes the band of another.
        trial: what was predicted, and what was measured.
    """

    system: str
    step: str
    kin: Hashable
    trial: Trial


@dataclass(frozen=True)
class Error:
    """How far rows of a step were off, in percent, and the deviations that 90 % of them are off.

    `is_own` says that all of them were measured on the system that was asked for.
    """

    rows: int
    median: float
    p95: float
    reach: float
    is_own: bool

    def columns(self) -> dict[str, object]:
        """What a row of a record says of its error."""
        whose = "this system" if self.is_own else "all systems"
        return {
            "error_median_percent": round(self.median, 1),
            "error_p95_percent": round(self.p95, 1),
            "error_of": f"{self.rows} rows left out of {whose}",
        }


NOT_KNOWN: dict[str, object] = {
    "error_median_percent": None,
    "error_p95_percent": None,
    "error_of": "not known: no row that goes such a step could be left out; the band is a guess",
}
"""The columns of a row whose step nothing was left out of."""


class Errors:
    """The errors of left-out rows, by step and system."""

    def __init__(self, rows: Iterable[LeftOut]) -> None:
        self._by_step: dict[str, list[LeftOut]] = collections.defaultdict(list)
        for row in rows:
            self._by_step[row.step].append(row)

    def of(self, system: str, step: str) -> Error | None:
        """The error of a step on a system; None if it is not known.

        By the rows of that system if there are ten, else by those of all systems.
        """
        rows = self._chosen(system, step)
        if len(rows) < FEW:
            return None
        found = accuracy.accuracy([row.trial for row in rows], 1.0)
        is_own = all(row.system == system for row in rows)
        return Error(len(rows), found.median, found.p95, _reach(rows), is_own)

    def reach(self, system: str, step: str) -> float:
        """Deviations to both sides that a band must reach; a guess if the error is not known."""
        error = self.of(system, step)
        return error.reach if error else NORMAL

    def columns(self, system: str, step: str) -> dict[str, object]:
        """What a row of a record says of its error."""
        error = self.of(system, step)
        return error.columns() if error else NOT_KNOWN

    def not_known(self, asked: Iterable[tuple[str, str]]) -> list[dict[str, object]]:
        """How many of these systems and steps are such of which the error is not known."""
        return [
            {"system": system, "step": step, "rows": count}
            for (system, step), count in sorted(collections.Counter(asked).items())
            if self.of(system, step) is None
        ]

    def table(self) -> list[dict[str, object]]:
        """A line for each system and step: errors, and how many rows lie in their bands.

        The band of a row is made of the rows that are not its kin; and of other systems alone.
        """
        groups = sorted({(row.system, row.step) for rows in self._by_step.values() for row in rows})
        return [self._line(system, step) for system, step in groups]

    def _line(self, system: str, step: str) -> dict[str, object]:
        alike = self._by_step[step]
        own = [row for row in alike if row.system == system]
        return {
            "system": system,
            "step": step,
            **accuracy.accuracy([row.trial for row in own], 1.0).errors(),
            "within_band_percent": _within(
                own, lambda row: self._chosen(row.system, row.step, row.kin)
            ),
            "within_band_of_other_systems_percent": _within(
                own, lambda row: [one for one in alike if one.system != row.system]
            ),
        }

    def _chosen(self, system: str, step: str, without: Hashable = None) -> list[LeftOut]:
        alike = [row for row in self._by_step.get(step, ()) if row.kin != without]
        own = [row for row in alike if row.system == system]
        return own if len(own) >= _ENOUGH else alike


def _reach(rows: Sequence[LeftOut]) -> float:
    """Deviations that hold the next row of such with a probability of 90 %.

    Source: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005 (conformal
    prediction). Of fewer than nine rows it is the largest, or that of a normal distribution.
    """
    found = sorted(row.trial.deviations for row in rows)
    place = math.ceil(QUANTILE * (len(found) + 1))
    return found[place - 1] if place <= len(found) else max(NORMAL, found[-1])


def _within(
    rows: Sequence[LeftOut], others: Callable[[LeftOut], Sequence[LeftOut]]
) -> float | None:
    """Percent of the rows in the band that others make; None if there are too few others."""
    made: dict[Hashable, float] = {}
    inside = []
    for row in rows:
        if row.kin not in made:
            by = others(row)
            made[row.kin] = _reach(by) if len(by) >= FEW else math.nan
        if not math.isnan(made[row.kin]):
            inside.append(row.trial.deviations <= made[row.kin])
    return round(100 * sum(inside) / len(inside), 1) if inside else None


_TITLES = ("rows", "median", "95th", "in band", "of others'")


def text(table: Sequence[Mapping[str, object]]) -> list[str]:
    """The lines of `Errors.table` for a page, beside linear scaling where the table has it."""
    has_linear = any("linear" in line for line in table)
    more = ("linear", "95th", "taken") if has_linear else ()
    widths = (6, 9, 9, 9, 12, 9, 9, 8)
    titles = zip((*_TITLES, *more), widths, strict=False)
    lines = [f"{'by system and step':52}" + "".join(f"{one:>{width}}" for one, width in titles)]
    for line in table:
        cells = [str(line["rows"]), *_errors(line)]
        for name in ("within_band_percent", "within_band_of_other_systems_percent"):
            cells.append("-" if line[name] is None else f"{line[name]:.0f}%")
        linear = line.get("linear")
        if has_linear:
            cells += _errors(linear) if isinstance(linear, Mapping) else ["-", "-"]
            cells.append(str(line["predicted_by"]))
        name = f"{line['system']}: {line['step']}"
        shown = zip(cells, widths, strict=False)
        lines.append(f"{name:52.52}" + "".join(f"{one:>{width}}" for one, width in shown))
    return lines


def _errors(found: Mapping[str, object]) -> list[str]:
    names = ("median_error_percent", "p95_error_percent")
    return [f"{found[name]:.1f}%" for name in names]
