"""Allreduce on clusters that were measured at smaller scale: prediction, band, reason."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradred_lab.simulate.accuracy import Floats
from gradred_lab.simulate.costs import Costs, Prior, nominal
from gradred_lab.simulate.measured import Case, Measured
from gradred_lab.simulate.twins import Twins

_STRANGE = 0.7  # deviation where the system itself was never measured


@dataclass(frozen=True)
class Prediction:
    """Predicted microseconds, the ends of the band that holds 90 %, and the model's reason."""

    us: float
    low_us: float
    high_us: float
    reason: str


@dataclass(frozen=True)
class Guess:
    """Logarithms of microseconds, and their deviations with the noise of a measurement."""

    mean: Floats
    deviation: Floats


class Cluster:
    """A system and a kind of memory, calibrated."""

    def __init__(self, rows: Sequence[Measured], prior: Prior) -> None:
        """Calibrate by at least one measurement."""
        self._noise = prior.noise
        self._twins = Twins(rows)
        self._costs = Costs(rows, self._twins.pattern, prior)
        self._nodes = sorted({row.case.nodes for row in rows})
        self._runs = {row.case.run for row in rows}
        self._keys = {row.case.key for row in rows}
        self._measured = {
            (row.case.key, row.case.bytes, row.case.run, row.case.nodes, row.case.ranks): row
            for row in rows
        }

    def guess(self, cases: Sequence[Case]) -> Guess:
        """Predict without a reason."""
        self._choose(cases)
        estimate = self._costs.predict(cases)
        least = np.array([self._least(case) for case in cases])
        mean = np.maximum(estimate.mean, least)
        return Guess(mean, np.hypot(estimate.deviation, self._noise))

    def _choose(self, cases: Sequence[Case]) -> None:
        """A library that compares times takes what is the fastest, which changes with the scale."""
        choices = {case: self._twins.choices(case) for case in cases}
        times: dict[Case, dict[str, float]] = collections.defaultdict(dict)
        for family in sorted(set().union(*choices.values())):
            asked = [case for case, families in choices.items() if family in families]
            for case in asked:
                self._twins.choose(case, family)
            for case, time in zip(asked, self._costs.predict(asked).mean, strict=True):
                times[case][family] = float(time)
        for case, found in times.items():
            self._twins.choose(case, min(found, key=lambda family: found[family]))

    def is_near(self, case: Case) -> bool:
        """Whether a run of its time was measured; else the conditions are those of another time."""
        return self._costs.is_near(case)

    def step(self, case: Case) -> str:
        """Where a prediction goes from what was measured: beyond its scales or not, and its times.

        Near in time is what has a run of the same week.
        """
        reach = "extrapolated" if case.nodes > self._nodes[-1] else "interpolated"
        return f"{reach}, {'near' if self.is_near(case) else 'far'}"

    def _least(self, case: Case) -> float:
        """Logarithm of the time at the next smaller scale: with more to do no case is faster."""
        run = self._costs.standing_in(case)
        place = (run.name, run.nodes, round(run.nodes * run.per_node))
        smaller = self._measured.get((case.key, case.bytes, *place))
        if smaller is None or run.nodes >= case.nodes or run.per_node > case.ranks_per_node:
            return -math.inf
        family = self._twins.family(case)[0]
        if family != self._twins.family(smaller.case)[0]:
            return -math.inf
        if self._work(case) < self._work(smaller.case):
            return -math.inf
        return math.log(smaller.us)

    def _work(self, case: Case) -> float:
        return nominal(case, self._twins.pattern(case))

    def reason(self, case: Case) -> str:
        """What the prediction rests on."""
        self._choose([case])
        pattern = self._twins.pattern(case)
        parts = [f"{pattern.family}, {self._twins.family(case)[1]}: {pattern.words}"]
        if case.key not in self._keys:
            parts.append("this algorithm was not measured there, so it costs what its family costs")
        parts.append(self._scale(case))
        if case.run not in self._runs:
            run = self._costs.standing_in(case)
            when = "of its time" if self.is_near(case) else "of another time"
            parts.append(f"its run was not measured: {run.name or 'one'} {when} stands in")
        return "; ".join(parts)

    def _scale(self, case: Case) -> str:
        low, high = self._nodes[0], self._nodes[-1]
        if case.nodes > high:
            return f"{case.nodes / high:.3g} times the largest measured scale of {high} nodes"
        if case.nodes < low:
            return f"below the smallest measured scale of {low} nodes"
        return "at a measured scale" if case.nodes in self._nodes else "between measured scales"


ANOTHER = "from other systems"
"""The step to a system of which nothing was measured."""


class Clusters:
    """All systems of a table."""

    def __init__(self, rows: Sequence[Measured], prior: Prior | None = None) -> None:
        """Calibrate each system by its own measurements."""
        self.prior = prior or Prior()
        self._clusters = {name: Cluster(own, self.prior) for name, own in by_cluster(rows).items()}

    def guess(self, cases: Sequence[Case]) -> Guess:
        """Predict without a reason: every case, whether its system was measured or not."""
        mean, deviation = np.zeros(len(cases)), np.zeros(len(cases))
        for name, places in _places(cases).items():
            own = [cases[i] for i in places]
            found = self._guess_one(name, own)
            mean[places], deviation[places] = found.mean, found.deviation
        return Guess(mean, deviation)

    def _guess_one(self, name: tuple[str, str], cases: Sequence[Case]) -> Guess:
        if name in self._clusters:
            return self._clusters[name].guess(cases)
        others = [self._clusters[other].guess(cases) for other in self._standing_in(name)]
        means = np.array([other.mean for other in others])
        spread = np.maximum(_STRANGE, means.std(axis=0))
        inner = np.median([other.deviation for other in others], axis=0)
        return Guess(np.median(means, axis=0), np.hypot(spread, inner))

    def _standing_in(self, name: tuple[str, str]) -> list[tuple[str, str]]:
        """The clusters by which to guess another one: of its memory if there are any."""
        alike = [other for other in self._clusters if other[1] == name[1]]
        same = [other for other in self._clusters if other[0] == name[0]]
        return alike or same or list(self._clusters)

    def without(self, name: tuple[str, str]) -> Clusters:
        """The same, but that nothing was measured on one of several clusters."""
        new = Clusters([], self.prior)
        new._clusters = {other: own for other, own in self._clusters.items() if other != name}
        return new

    def step(self, case: Case) -> str:
        """Where a prediction goes from what was measured, on its cluster or elsewhere."""
        name = cluster_of(case)
        return self._clusters[name].step(case) if name in self._clusters else ANOTHER

    def reason(self, case: Case) -> str:
        """What the prediction of a case rests on."""
        name = cluster_of(case)
        if name in self._clusters:
            return self._clusters[name].reason(case)
        others = [f"{system} ({buffer})" for system, buffer in self._standing_in(name)]
        own = self._clusters[self._standing_in(name)[0]].reason(case)
        asked, names = f"{case.system} ({case.buffer})", ", ".join(others)
        return f"{asked} was not measured: {names} in its place; {own}"


def cluster_of(case: Case) -> tuple[str, str]:
    """The name of the cluster of a case: system and kind of memory."""
    return case.system, case.buffer


def by_cluster(rows: Sequence[Measured]) -> dict[tuple[str, str], list[Measured]]:
    """The measurements of each cluster."""
    groups: dict[tuple[str, str], list[Measured]] = collections.defaultdict(list)
    for row in rows:
        groups[cluster_of(row.case)].append(row)
    return dict(groups)


def _places(cases: Sequence[Case]) -> dict[tuple[str, str], list[int]]:
    places: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for i, case in enumerate(cases):
        places[cluster_of(case)].append(i)
    return places


def banded(guess: Guess, i: int, width: float, reason: str) -> Prediction:
    """One prediction, with a band that reaches `width` deviations to both sides."""
    reach = width * float(guess.deviation[i])
    mean = float(guess.mean[i])
    low, middle, high = (math.exp(min(mean + way * reach, 600.0)) for way in (-1, 0, 1))
    return Prediction(middle, low, high, reason)
