"""What a message costs on one cluster, learned from measured allreduces of any algorithm.

The logarithm of the cost of a message is a function of its length, given at knots and straight
between them, so that switches of protocol bend it where they lie. It is the sum of what all
algorithms share, what a family, an algorithm and a run have of their own, and a drift with scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Kernel, Matern

from gradred_lab.simulate.accuracy import Floats
from gradred_lab.simulate.measured import Case, Measured
from gradred_lab.simulate.patterns import FLOW, INSIDE, KEPT, KINDS, REDUCED, START, Pattern
from gradred_lab.simulate.process import Estimate, Linear, On, Part, Process

_KNOTS = np.arange(0.0, 31.0, 1.0)  # powers of two of bytes
_SHORTEST = 64.0  # bytes: shorter messages cost the same
_SENDS = slice(0, KINDS * len(_KNOTS))
_WHOLE = slice(_SENDS.stop, _SENDS.stop + len(_KNOTS))  # of the vector's length
_EACH = slice(_WHOLE.stop, _WHOLE.stop + len(_KNOTS))  # of a rank's part of the vector
_UNKNOWNS = _EACH.stop

# Microseconds per message and per byte before anything is known: only where to begin.
_BASE = {
    REDUCED: (2.0, 3e-4),
    KEPT: (1.5, 1.5e-4),
    INSIDE: (0.8, 1.5e-4),
    FLOW: (0.01, 2e-4),
    START: (0.5, 1e-6),
}
_BASE_GPU = {
    REDUCED: (5.0, 4e-5),
    KEPT: (5.0, 4e-5),
    INSIDE: (0.2, 1e-5),
    FLOW: (0.01, 1e-5),
    START: (4.0, 1e-7),
}


@dataclass(frozen=True)
class Prior:
    """How far costs may differ: standard deviations of logarithms, lengths in powers of two."""

    shared: float = 1.0
    shared_fine: float = 0.3
    family: float = 0.7
    algorithm: float = 0.3
    run: float = 0.6
    family_in_run: float = 0.4
    drift: float = 0.05
    family_drift: float = 0.03
    whole: float = 0.14
    each: float = 0.08
    whole_in_run: float = 0.2
    noise: float = 0.03
    days: float = 40.0
    session: float = 1.5
    standing: float = 0.08
    doublings: float = 3.0


# Of what a run has of its own: the share that no other run has, and the share of all runs of a
# session, which are a day or so apart; the rest is of runs near in scale and time.
OF_THE_RUN, OF_THE_SESSION = 0.05, 0.6

WEEK = 7.0  # days: within it a run is of the same time

_AT_ONCE = 500  # cases that are predicted together, which bounds the memory

# Columns of the traits of a case.
_FAMILY, _KEY, _SCALE, _RUN_SCALE, _DAY, _RUN, _PER_NODE = range(7)
_TRAITS = 7


@dataclass(frozen=True)
class Run:
    """One campaign on some nodes: what its cases have in common beside their cluster."""

    name: str
    library: str
    nodes: int
    per_node: float
    day: float | None

    def far(self, other: Run) -> float:
        """How little one correlates with the other: first the scale, then the time."""
        days = 30.0 if self.day is None or other.day is None else abs(self.day - other.day)
        return (
            abs(math.log2(self.nodes / other.nodes))
            + abs(math.log2(self.per_node / other.per_node))
            + 0.3 * min(1.0, days / 30.0)
            + 2.0 * (self.library != other.library)
        )


def nominal(case: Case, pattern: Pattern) -> float:
    """Microseconds by what messages cost before anything is known: good for comparisons alone."""
    base = _BASE_GPU if case.buffer == "gpu" else _BASE
    return sum(
        send.times * (base[send.kind][0] + base[send.kind][1] * send.bytes)
        for send in pattern.sends
    )


def _run(case: Case) -> Run:
    return Run(case.run, case.library, case.nodes, case.ranks_per_node, case.day)


class Costs:
    """The costs of one cluster's messages."""

    def __init__(
        self,
        rows: Sequence[Measured],
        pattern: Callable[[Case], Pattern],
        prior: Prior,
    ) -> None:
        """Learn from measurements of one system and one kind of memory."""
        self._pattern, self._prior = pattern, prior
        self._codes: dict[object, int] = {}
        self._runs = sorted({_run(row.case) for row in rows}, key=str)
        self._scale = float(np.mean([math.log2(row.case.nodes) for row in rows]))
        cases = [row.case for row in rows]
        measured = np.log([row.us for row in rows])
        noise = np.array([_noise(row, prior.noise) for row in rows])
        self._process = Process(
            _parts(prior),
            self._traits(cases, [_run(case) for case in cases]),
            self._linear(cases),
            measured,
            noise,
        )

    def predict(self, cases: Sequence[Case]) -> Estimate:
        """Logarithms of microseconds.

        A case of a run that was not measured has the conditions of others: between two measured
        scales those of both neighbours, by how near they are. It is further off, then.
        """
        stand_ins = [self._stand_ins(case) for case in cases]
        pairs = [
            (case, run) for case, runs in zip(cases, stand_ins, strict=True) for run, _ in runs
        ]
        asked = [case for case, _ in pairs]
        traits = self._traits(asked, [run for _, run in pairs])
        parts = [
            self._process.predict(traits[k : k + _AT_ONCE], self._linear(asked[k : k + _AT_ONCE]))
            for k in range(0, len(asked), _AT_ONCE)
        ]
        found = Estimate(
            np.concatenate([part.mean for part in parts] or [np.zeros(0)]),
            np.concatenate([part.deviation for part in parts] or [np.zeros(0)]),
        )
        mean, deviation = np.zeros(len(cases)), np.zeros(len(cases))
        first = 0
        for i, runs in enumerate(stand_ins):
            own = slice(first, first + len(runs))
            weights = np.array([weight for _, weight in runs])
            mean[i] = weights @ found.mean[own]
            apart = float(np.ptp(found.mean[own])) / 4
            stood = 0.0 if _run(cases[i]) in self._runs else self._prior.standing
            deviation[i] = math.hypot(float(weights @ found.deviation[own]), stood, apart)
            first += len(runs)
        return Estimate(mean, deviation)

    def _code(self, thing: object) -> float:
        return float(self._codes.setdefault(thing, len(self._codes)))

    def standing_in(self, case: Case) -> Run:
        """The measured run whose conditions a case has: its own, or the nearest in scale."""
        own = _run(case)
        return own if own in self._runs else min(self._runs, key=own.far)

    def is_near(self, case: Case) -> bool:
        """Whether a run of its time stands in for it: of a week, of its library."""
        own, other = _run(case), self.standing_in(case)
        if own.day is None or other.day is None:
            return own == other
        return own.library == other.library and abs(own.day - other.day) <= WEEK

    def _stand_ins(self, case: Case) -> list[tuple[Run, float]]:
        """`standing_in` with its weight; between measured scales the nearest run of each side."""
        near = self.standing_in(case)
        sides = [
            [run for run in self._runs if (run.nodes < case.nodes) == below]
            for below in (True, False)
        ]
        if near.nodes == case.nodes or not all(sides):
            return [(near, 1.0)]
        own = _run(case)
        two = [min(side, key=own.far) for side in sides]
        far = [abs(math.log2(case.nodes / run.nodes)) for run in two]
        if max(own.far(run) - away for run, away in zip(two, far, strict=True)) > 1.0:
            return [(near, 1.0)]  # of other libraries, or with other ranks a node
        return [(two[0], far[1] / sum(far)), (two[1], far[0] / sum(far))]

    def _traits(self, cases: Sequence[Case], runs: Sequence[Run]) -> Floats:
        traits = np.zeros((len(cases), _TRAITS))
        for i, (case, run) in enumerate(zip(cases, runs, strict=True)):
            traits[i] = (
                self._code(self._pattern(case).family),
                self._code(case.key),
                math.log2(case.nodes) - self._scale,
                math.log2(run.nodes),
                0.0 if run.day is None else run.day,
                self._code(run),
                math.log2(run.per_node),
            )
        return traits

    def _linear(self, cases: Sequence[Case]) -> Linear:
        """The sum over the messages of each case, and its slopes."""
        sends = [self._pattern(case).sends for case in cases]
        most = max((len(one) for one in sends), default=1)
        times = np.zeros((len(cases), most))
        base = np.zeros((len(cases), most))
        hats = np.zeros((len(cases), most, _SENDS.stop))
        fixed = np.zeros((len(cases), _UNKNOWNS))
        for i, case in enumerate(cases):
            for k, send in enumerate(sends[i]):
                alpha, beta = (_BASE_GPU if case.buffer == "gpu" else _BASE)[send.kind]
                times[i, k] = send.times
                base[i, k] = math.log(alpha + beta * send.bytes)
                first = send.kind * len(_KNOTS)
                hats[i, k, first : first + len(_KNOTS)] = _hats(max(send.bytes, _SHORTEST))
            fixed[i, _WHOLE] = _hats(case.bytes)
            fixed[i, _EACH] = _hats(case.bytes / case.ranks)

        def linear(latent: Floats) -> tuple[Floats, Floats]:
            cost = times * np.exp(base + np.einsum("rku,ru->rk", hats, latent[:, _SENDS]))
            total = cost.sum(axis=1)
            slopes = fixed.copy()
            slopes[:, _SENDS] = np.einsum("rk,rku->ru", cost / total[:, None], hats)
            return np.log(total) + np.einsum("ru,ru->r", fixed, latent), slopes

        return linear


def _noise(row: Measured, least: float) -> float:
    """How far a measured median may lie from the true one, as a logarithm."""
    if row.low_us is None or row.high_us is None or row.samples is None:
        return least
    spread = max(0.0, math.log(max(row.high_us, row.us) / min(row.low_us, row.us))) / 2.56
    return math.hypot(least, min(0.5, 1.25 * spread / math.sqrt(row.samples)))


def _hats(nbytes: float) -> Floats:
    """Weights of the knots for this length: two neighbours share it."""
    at = min(max(math.log2(max(nbytes, 1.0)), _KNOTS[0]), _KNOTS[-1])
    weights: Floats = np.maximum(0.0, 1 - np.abs(_KNOTS - at) / (_KNOTS[1] - _KNOTS[0]))
    return weights


def _parts(prior: Prior) -> list[Part]:
    family, key, run, scale = (
        _same(_FAMILY),
        _same(_KEY),
        _same(_RUN),
        _trait(_SCALE, DotProduct(0)),
    )
    session = _fading(4 * prior.doublings, 8, prior.session)
    lasting = _fading(prior.doublings, 2, prior.days)
    rest = 1 - OF_THE_RUN - OF_THE_SESSION
    near = OF_THE_RUN * run + OF_THE_SESSION * session + rest * lasting
    everywhere = _trait(_FAMILY, ConstantKernel())
    return [
        Part(everywhere, _SENDS, _sends(prior.shared, 8.0)),
        Part(everywhere, _SENDS, _sends(prior.shared_fine, 1.0)),
        Part(family, _SENDS, _sends(prior.family, 5.0)),
        Part(key, _SENDS, _sends(prior.algorithm, 4.0)),
        Part(near, _SENDS, _sends(prior.run, 6.0)),
        Part(family * near, _SENDS, _sends(prior.family_in_run, 4.0)),
        Part(scale, _SENDS, _sends(prior.drift, 8.0)),
        Part(family * scale, _SENDS, _sends(prior.family_drift, 8.0)),
        Part(key, _WHOLE, prior.whole**2 * _smooth(2.5)),
        Part(key, _EACH, prior.each**2 * _smooth(2.0)),
        Part(key * near, _WHOLE, prior.whole_in_run**2 * _smooth(2.0)),
    ]


def _trait(column: int, kernel: Kernel) -> Kernel:
    return On(slice(column, column + 1), kernel)


def _same(column: int) -> Kernel:
    """1 for cases of the same code, and 0 for others: codes are whole numbers."""
    return _trait(column, Matern(1e-3, nu=0.5))


def _fading(scale: float, per_node: float, days: float) -> Kernel:
    """Less by a factor of e for each so many doublings of nodes, of ranks of a node, or days."""
    return (
        _trait(_RUN_SCALE, Matern(scale, nu=0.5))
        * _trait(_PER_NODE, Matern(per_node, nu=0.5))
        * _trait(_DAY, Matern(days, nu=0.5))
    )


def _smooth(length: float) -> Floats:
    """Covariance of the knots: Matern's of order 3/2."""
    return np.asarray(Matern(length, nu=1.5)(_KNOTS[:, None]))


def _sends(deviation: float, length: float) -> Floats:
    """Covariance of the knots of all kinds of messages."""
    kinds = np.full((KINDS, KINDS), 0.5)
    kinds[REDUCED, KEPT] = kinds[KEPT, REDUCED] = 0.9
    kinds[START, :] = kinds[:, START] = 0.0
    np.fill_diagonal(kinds, 1.0)
    return np.asarray(deviation**2 * np.kron(kinds, _smooth(length)))
