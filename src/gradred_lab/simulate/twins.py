"""Which algorithm a name stands for in a run: that whose time it shares, size by size.

Some names mean a choice that the library makes by the length (`default`), some mean an algorithm
that the hardware lacks, so that the library takes another one, and some were ignored: a
run asked for recursive doubling and got the default. The times tell: two that are equal in one run
are of one algorithm.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

from gradred_lab.simulate import patterns
from gradred_lab.simulate.measured import Case, Measured
from gradred_lab.simulate.patterns import Pattern

# Differences of logarithms: two times are of one algorithm at most so far apart, and a name is
# doubted if its time is so far from that of the same algorithm by somebody else.
_ALIKE, _SAME, _DOUBTFUL = 0.35, 0.05, 0.25
_OFTEN = 3  # lengths of a run at which a name must be doubted: one may be chance
_CHOOSING = ("nccl",)  # compare times by a model of their own (NCCL's src/graph/tuning.cc)
_OTHERS = 0.4  # weight of what other switching algorithms of the same library took


class Twins:
    """The family of each name in the measurements."""

    def __init__(self, rows: Sequence[Measured]) -> None:
        """Compare each algorithm with the others of its run."""
        beside: dict[tuple[str, int, int], list[Measured]] = collections.defaultdict(list)
        for row in rows:
            beside[row.case.run, row.case.ranks, row.case.bytes].append(row)
        self._exact: dict[Case, str] = {}
        self._chosen: dict[Case, str] = {}
        self._taken: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
        self._seen: dict[tuple[str, str], list[tuple[float, float, str, float]]]
        self._seen = collections.defaultdict(list)
        self._doubted: set[tuple[str, str]] = set()
        unheeded: dict[tuple[str, int, str, str], list[tuple[Measured, str]]]
        unheeded = collections.defaultdict(list)
        for group in beside.values():
            for row in group:
                other = self._look(row, group)
                if other:
                    case = row.case
                    unheeded[case.run, case.ranks, case.impl, case.algorithm].append((row, other))
        for (_, _, impl, algorithm), found in unheeded.items():
            if len(found) >= _OFTEN:
                self._doubted.add((impl, algorithm))
            for row, other in found:
                own = patterns.family_of(row.case) or other
                self._remember(row, {other if len(found) >= _OFTEN else own: 1.0})

    def _look(self, row: Measured, group: Sequence[Measured]) -> str | None:
        """Remember what a row is; of one that is doubted the family that it seems to be."""
        fixed = [
            (abs(math.log(row.us / other.us)), other.case.impl, family)
            for other in group
            if other is not row
            and not other.case.segment
            and not patterns.is_switching(other.case.algorithm)
            and (family := patterns.family_of(other.case))
        ]
        if patterns.is_switching(row.case.algorithm):
            if fixed and min(fixed)[0] <= _ALIKE:
                self._remember(row, _weights(fixed))
            return None
        own = patterns.family_of(row.case)
        if own is None:
            return None
        same = [far for far, impl, family in fixed if family == own and impl != row.case.impl]
        others = [(far, family) for far, _, family in fixed if family != own]
        if same and others and min(same) > _DOUBTFUL and min(others)[0] <= _SAME:
            return min(others)[1]
        self._remember(row, {own: 1.0})
        return None

    def _remember(self, row: Measured, weights: dict[str, float]) -> None:
        likely = max(weights, key=lambda family: weights[family])
        self._exact[row.case] = likely
        self._taken[row.case.impl, row.case.algorithm].add(likely)
        place = (math.log2(row.case.nodes), math.log2(max(1, row.case.bytes)))
        for family, weight in weights.items():
            self._seen[row.case.impl, row.case.algorithm].append((*place, family, weight))

    def family(self, case: Case) -> tuple[str, str]:
        """The family to take for a case, and how that was found."""
        if case in self._exact:
            return self._exact[case], "as measured in this run"
        if case in self._chosen:
            return self._chosen[case], "switches, to the fastest of those that it takes"
        name = (case.impl, case.algorithm)
        if not patterns.is_switching(case.algorithm) and name not in self._doubted:
            known = patterns.family_of(case)
            return (known, "by its name") if known else (patterns.guess(case), "unknown: a guess")
        votes: dict[str, float] = collections.defaultdict(float)
        for (impl, algorithm), seen in self._seen.items():
            if impl != case.impl or (
                algorithm != case.algorithm and not _both_switch(name, algorithm)
            ):
                continue
            trust = 1.0 if algorithm == case.algorithm else _OTHERS
            for scale, length, family, weight in seen:
                far = abs(scale - math.log2(case.nodes)) / 3
                far += abs(length - math.log2(max(1, case.bytes)))
                votes[family] += trust * weight * math.exp(-far)
        if not votes:
            return patterns.guess(case), "switches, to which is a guess"
        return max(votes, key=lambda family: votes[family]), "switches, to this at such sizes"

    def choices(self, case: Case) -> list[str]:
        """The families among which a library that compares times has yet to choose."""
        name = (case.impl, case.algorithm)
        is_fixed = not patterns.is_switching(case.algorithm) and name not in self._doubted
        is_known = case in self._exact or case in self._chosen
        if is_fixed or is_known or case.impl not in _CHOOSING:
            return []
        taken = sorted(self._taken.get(name, ()))
        return taken if len(taken) > 1 else []

    def choose(self, case: Case, family: str) -> None:
        """Take this family for a case that was not measured."""
        self._chosen[case] = family

    def pattern(self, case: Case) -> Pattern:
        """What the case sends."""
        return patterns.pattern(case, self.family(case)[0])


def _both_switch(name: tuple[str, str], algorithm: str) -> bool:
    return patterns.is_switching(name[1]) and patterns.is_switching(algorithm)


def _weights(fixed: Sequence[tuple[float, str, str]]) -> dict[str, float]:
    """How likely each family is the one, by the nearest time of it; the nearest of all counts 1."""
    nearest: dict[str, float] = {}
    for far, _, family in fixed:
        nearest[family] = min(far, nearest.get(family, far))
    least = min(nearest.values())
    return {family: math.exp((least - far) / _SAME) for family, far in nearest.items()}
