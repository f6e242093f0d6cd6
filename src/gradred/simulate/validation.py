"""Cross-validation of allreduce: scales are left out and predicted from the others."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gradred.simulate import accuracy
from gradred.simulate.accuracy import Trial
from gradred.simulate.allreduce import NORMAL, Cluster, by_cluster
from gradred.simulate.costs import Prior
from gradred.simulate.measured import Case, Measured

_NARROWEST = 1.0  # deviations: trials within the calibrated scales may flatter the band


@dataclass(frozen=True)
class Attempt:
    """A measured case, predicted without any of its scale.

    `factor` is its scale over the largest of those that were kept: above 1 it was extrapolated.
    """

    case: Case
    factor: float
    is_beyond: bool
    trial: Trial


def attempts(rows: Sequence[Measured], prior: Prior) -> list[Attempt]:
    """Leave out each scale of each cluster; and each with all above it, to extrapolate."""
    found: list[Attempt] = []
    for own in by_cluster(rows).values():
        for kept, left in _folds(own):
            guess = Cluster(kept, prior).guess([row.case for row in left])
            largest = max(row.case.nodes for row in kept)
            beyond = all(row.case.nodes > largest for row in left)
            for i, row in enumerate(left):
                trial = Trial(
                    float(np.log(row.us)), float(guess.mean[i]), float(guess.deviation[i])
                )
                found.append(Attempt(row.case, row.case.nodes / largest, beyond, trial))
    return found


def _folds(rows: Sequence[Measured]) -> Iterator[tuple[list[Measured], list[Measured]]]:
    scales = sorted({row.case.nodes for row in rows})
    for scale in scales:
        left = [row for row in rows if row.case.nodes == scale]
        below = [row for row in rows if row.case.nodes < scale]
        others = [row for row in rows if row.case.nodes != scale]
        if below:
            yield below, left
        if others and len(others) != len(below):
            yield others, left


@dataclass(frozen=True)
class Widths:
    """How many deviations a band must reach to hold 90 %, by cluster."""

    own: dict[tuple[str, str], float]
    common: float

    def of(self, cluster: tuple[str, str]) -> float:
        """That of a cluster, or the common one where it could not be tried."""
        return self.own.get(cluster, self.common)


def widths(found: Sequence[Attempt]) -> Widths:
    """From the trials beyond the kept scales, as the rows to predict are."""
    groups: dict[tuple[str, str], list[Trial]] = collections.defaultdict(list)
    for attempt in found:
        if attempt.is_beyond:
            groups[attempt.case.system, attempt.case.buffer].append(attempt.trial)
    everything = [trial for trials in groups.values() for trial in trials]
    common = max(_NARROWEST, accuracy.width(everything) or NORMAL)
    own = {
        name: max(_NARROWEST, width)
        for name, trials in groups.items()
        if (width := accuracy.width(trials)) is not None
    }
    return Widths(own, common)


def summary(found: Sequence[Attempt], bands: Widths) -> dict[str, object]:
    """As the JSON holds it: whole, by system, by system and algorithm, and the worst with why."""
    return {
        "method": "leave one scale out; extrapolated: predicted from smaller scales alone",
        "all": _entry(found, bands),
        "by_system": _by(found, bands, ("system", "buffer")),
        "by_algorithm": _by(found, bands, ("system", "buffer", "impl", "algorithm")),
        "by_scale": _by(found, bands, ("system", "buffer", "nodes")),
    }


def _by(
    found: Sequence[Attempt], bands: Widths, columns: tuple[str, ...]
) -> list[dict[str, object]]:
    groups: dict[tuple[object, ...], list[Attempt]] = collections.defaultdict(list)
    for attempt in found:
        groups[tuple(getattr(attempt.case, column) for column in columns)].append(attempt)
    return [
        {**dict(zip(columns, name, strict=True)), **_entry(group, bands)}
        for name, group in sorted(groups.items(), key=lambda item: str(item[0]))
    ]


def _entry(found: Sequence[Attempt], bands: Widths) -> dict[str, object]:
    """Accuracy of all trials, and of those beyond the kept scales by how far beyond."""
    entry: dict[str, object] = {}
    for name, chosen in (
        ("all", list(found)),
        ("extrapolated", [a for a in found if a.is_beyond]),
        ("extrapolated_to_2x", [a for a in found if a.is_beyond and a.factor <= 2]),
        ("extrapolated_to_4x", [a for a in found if a.is_beyond and 2 < a.factor <= 4]),
    ):
        if chosen:
            scaled = [_scaled(attempt, bands) for attempt in chosen]
            entry[name] = accuracy.accuracy(scaled, 1.0).record()
    return entry


def _scaled(attempt: Attempt, bands: Widths) -> Trial:
    """The trial with the reach of its band for a deviation."""
    trial = attempt.trial
    width = bands.of((attempt.case.system, attempt.case.buffer))
    return Trial(trial.measured, trial.predicted, trial.deviation * width)
