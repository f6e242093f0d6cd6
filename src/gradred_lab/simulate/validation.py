"""Cross-validation of allreduce: scales are left out and predicted from the others."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gradred_lab.simulate import accuracy
from gradred_lab.simulate.accuracy import Trial
from gradred_lab.simulate.allreduce import ANOTHER, Cluster, Clusters, by_cluster, cluster_of
from gradred_lab.simulate.costs import Prior
from gradred_lab.simulate.left_out import Errors, LeftOut
from gradred_lab.simulate.measured import Case, Measured

_WORST = 4  # number of reported trials with the largest errors, near in time and others


@dataclass(frozen=True)
class Attempt:
    """A measured case, predicted without any of its scale.

    `factor` is its scale over the largest of those that were kept: above 1 it was extrapolated.
    `is_near` says that a run of the same time was kept, `step` where the prediction went.
    """

    case: Case
    factor: float
    is_beyond: bool
    is_near: bool
    step: str
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
                step = model.step(row.case)
                found.append(Attempt(row.case, factor, beyond, near, step, trial))
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


def errors(found: Sequence[Attempt], rows: Sequence[Measured], model: Clusters) -> Errors:
    """Those of what was left out, scale by scale; and system by system, of a model of `rows`."""
    return Errors(
        [
            *(
                LeftOut(system(one.case), one.step, (one.case.key, one.case.nodes), one.trial)
                for one in found
            ),
            *_systems_left_out(rows, model),
        ]
    )


def _systems_left_out(rows: Sequence[Measured], model: Clusters) -> Iterator[LeftOut]:
    clusters = by_cluster(rows)
    for name, own in clusters.items():
        if len(clusters) > 1:
            guess = model.without(name).guess([row.case for row in own])
            for i, row in enumerate(own):
                trial = Trial(
                    float(np.log(row.us)), float(guess.mean[i]), float(guess.deviation[i])
                )
                yield LeftOut(system(row.case), ANOTHER, name, trial)


def system(case: Case) -> str:
    """The name of its cluster."""
    return " ".join(filter(None, cluster_of(case)))


def summary(found: Sequence[Attempt], bands: Errors) -> dict[str, object]:
    """Return the JSON's summary: all, by system, by algorithm too, and the worst with why."""
    return {
        "method": "leave one scale out; extrapolated: predicted from smaller scales alone",
        "by_step": bands.table(),
        "all": _entry(found, bands),
        "by_system": _by(found, bands, ("system", "buffer")),
        "by_algorithm": _by(found, bands, ("system", "buffer", "impl", "algorithm")),
        "by_scale": _by(found, bands, ("system", "buffer", "nodes")),
        "by_length": _by(found, bands, ("system", "buffer", "bytes")),
        "worst": _worst(found),
    }


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
    found: Sequence[Attempt], bands: Errors, columns: tuple[str, ...]
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


def _entry(found: Sequence[Attempt], bands: Errors) -> dict[str, object]:
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


def _scaled(attempt: Attempt, bands: Errors) -> Trial:
    """The trial with the reach of its band for a deviation."""
    trial = attempt.trial
    width = bands.reach(system(attempt.case), attempt.step)
    return Trial(trial.measured, trial.predicted, trial.deviation * width)
