"""Cross-validation of allreduce: scales are left out and predicted from the others."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gradred_lab.simulate import accuracy
from gradred_lab.simulate.accuracy import Trial
from gradred_lab.simulate.allreduce import Cluster, by_cluster
from gradred_lab.simulate.costs import Prior
from gradred_lab.simulate.measured import Case, Measured

_WORST = 4  # number of reported trials with the largest errors, near in time and others
_BORROWED = 100  # trials of other clusters that count beside a cluster's own
_NARROWEST = 1.0  # deviations: trials within the calibrated scales may flatter the band


@dataclass(frozen=True)
class Attempt:
    """A measured case, predicted without any of its scale.

    `factor` is its scale over the largest of those that were kept: above 1 it was extrapolated.
    `is_near` says that a run of the same time was kept.
    """

    case: Case
    factor: float
    is_beyond: bool
    is_near: bool
    trial: Trial


def attempts(rows: Sequence[Measured], prior: Prior) -> list[Attempt]:
    """Leave out each scale of each cluster; and each with all above it, to extrapolate."""
    found: list[Attempt] = []
    for own in by_cluster(rows).values():
        for kept, left in _folds(own):
            model = Cluster(kept, prior)
            guess = model.guess([row.case for row in left])
            largest = max(row.case.nodes for row in kept)
            beyond = all(row.case.nodes > largest for row in left)
            for i, row in enumerate(left):
                trial = Trial(
                    float(np.log(row.us)), float(guess.mean[i]), float(guess.deviation[i])
                )
                factor, near = row.case.nodes / largest, model.is_near(row.case)
                found.append(Attempt(row.case, factor, beyond, near, trial))
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
    """How many deviations a band must reach to hold 90 %: by cluster, and near in time or not."""

    own: dict[tuple[str, str, bool], float]
    common: dict[bool, float]

    def of(self, case: Case, *, near: bool) -> float:
        """That of a cluster, or the common one where it could not be tried."""
        return self.own.get((case.system, case.buffer, near), self.common[near])


def widths(found: Sequence[Attempt]) -> Widths:
    """From the trials beyond the kept scales, as the rows to predict are."""
    groups: dict[tuple[str, str, bool], list[Trial]] = collections.defaultdict(list)
    for attempt in found:
        if attempt.is_beyond:
            case = attempt.case
            groups[case.system, case.buffer, attempt.is_near].append(attempt.trial)
    common = {}
    for near in (True, False):
        trials = [trial for name, own in groups.items() if name[2] == near for trial in own]
        common[near] = max(_NARROWEST, accuracy.width(trials) or accuracy.NORMAL)
    own = {}
    for name, trials in groups.items():
        width = accuracy.width(trials)
        if width is not None:
            few = _BORROWED / (_BORROWED + len(trials))
            own[name] = max(_NARROWEST, (1 - few) * width + few * common[name[2]])
    return Widths(own, common)


def summary(found: Sequence[Attempt], bands: Widths) -> dict[str, object]:
    """Return the JSON's summary: all, by system, by algorithm too, and the worst with why."""
    return {
        "method": "leave one scale out; extrapolated: predicted from smaller scales alone",
        "all": _entry(found, bands),
        "by_system": _by(found, bands, ("system", "buffer")),
        "by_algorithm": _by(found, bands, ("system", "buffer", "impl", "algorithm")),
        "by_scale": _by(found, bands, ("system", "buffer", "nodes")),
        "worst": _worst(found),
    }


def not_compared(found: Sequence[Attempt], cases: Sequence[Case]) -> list[dict[str, str]]:
    """The clusters of some cases for which nothing was predicted beyond the kept scales."""
    tried = {(a.case.system, a.case.buffer) for a in found if a.is_beyond}
    return [
        {"system": system, "buffer": buffer}
        for system, buffer in sorted({(case.system, case.buffer) for case in cases} - tried)
    ]


def _worst(found: Sequence[Attempt]) -> list[dict[str, object]]:
    """The extrapolations furthest off, one of each algorithm, with the likely cause."""
    beyond = sorted((a for a in found if a.is_beyond), key=lambda attempt: -attempt.trial.percent)
    first: dict[tuple[str, str, bool], Attempt] = {}
    for attempt in beyond:
        name = (attempt.case.system, attempt.case.algorithm, attempt.is_near)
        first.setdefault(name, attempt)
    near = [attempt for attempt in first.values() if attempt.is_near]
    far = [attempt for attempt in first.values() if not attempt.is_near]
    return [
        {
            "system": attempt.case.system,
            "nodes": attempt.case.nodes,
            "algorithm": attempt.case.algorithm,
            "bytes": attempt.case.bytes,
            "error_percent": round(attempt.trial.percent, 1),
            "why": _why(attempt, beyond),
        }
        for attempt in sorted(
            [*near[:_WORST], *far[:_WORST]], key=lambda attempt: -attempt.trial.percent
        )
    ]


def _why(attempt: Attempt, beyond: Sequence[Attempt]) -> str:
    case = attempt.case
    if not attempt.is_near:
        return "only runs of other times were left, and those differ"
    beside = [
        a.trial.percent
        for a in beyond
        if (a.case.run, a.case.key, a.case.nodes) == (case.run, case.key, case.nodes)
        and a.case.bytes != case.bytes
    ]
    if beside and float(np.median(beside)) < attempt.trial.percent / 3:
        return "other lengths of this algorithm fit: a switch of the library, or a lone outlier"
    return "the algorithm scales otherwise than its family does here"


def _by(
    found: Sequence[Attempt], bands: Widths, columns: tuple[str, ...]
) -> list[dict[str, object]]:
    groups: dict[tuple[object, ...], list[Attempt]] = collections.defaultdict(list)
    for attempt in found:
        groups[tuple(getattr(attempt.case, column) for column in columns)].append(attempt)
    return [
        {**dict(zip(columns, name, strict=True)), **_entry(group, bands)}
        for name, group in sorted(groups.items(), key=lambda item: _place(item[0]))
    ]


def _place(name: tuple[object, ...]) -> list[tuple[int, str]]:
    """Texts by the alphabet, numbers by their size."""
    return [(part if isinstance(part, int) else 0, str(part)) for part in name]


def _entry(found: Sequence[Attempt], bands: Widths) -> dict[str, object]:
    """Accuracy of all trials, and of those beyond the kept scales by how far beyond."""
    entry: dict[str, object] = {}
    for name, chosen in (
        ("all", list(found)),
        ("extrapolated", [a for a in found if a.is_beyond]),
        ("extrapolated_to_2x", [a for a in found if a.is_beyond and a.factor <= 2]),
        ("extrapolated_near_in_time", [a for a in found if a.is_beyond and a.is_near]),
        ("extrapolated_far_in_time", [a for a in found if a.is_beyond and not a.is_near]),
        ("extrapolated_to_4x", [a for a in found if a.is_beyond and 2 < a.factor <= 4]),
    ):
        if chosen:
            scaled = [_scaled(attempt, bands) for attempt in chosen]
            entry[name] = accuracy.accuracy(scaled, 1.0).record()
    return entry


def _scaled(attempt: Attempt, bands: Widths) -> Trial:
    """The trial with the reach of its band for a deviation."""
    trial = attempt.trial
    width = bands.of(attempt.case, near=attempt.is_near)
    return Trial(trial.measured, trial.predicted, trial.deviation * width)
