"""Which algorithm one that switches has taken: that whose time it shares, size by size."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

from gradred.simulate import patterns
from gradred.simulate.measured import Case, Measured
from gradred.simulate.patterns import Pattern

_ALIKE = 0.35  # difference of logarithms above which two times are not of one algorithm


class Twins:
    """The families that switching algorithms took in the measurements."""

    def __init__(self, rows: Sequence[Measured]) -> None:
        """Compare each switching algorithm with the others of its run."""
        beside: dict[tuple[str, int, int], list[Measured]] = collections.defaultdict(list)
        for row in rows:
            beside[row.case.run, row.case.ranks, row.case.bytes].append(row)
        self._seen: dict[tuple[str, str], list[tuple[float, float, str]]]
        self._seen = collections.defaultdict(list)
        for group in beside.values():
            fixed = [
                (row, family)
                for row in group
                if not patterns.is_switching(row.case.algorithm)
                and (family := patterns.family_of(row.case))
            ]
            for row in group:
                if patterns.is_switching(row.case.algorithm) and fixed:
                    self._note(row, fixed)

    def _note(self, row: Measured, fixed: Sequence[tuple[Measured, str]]) -> None:
        far, family = min((abs(math.log(row.us / other.us)), name) for other, name in fixed)
        if far <= _ALIKE:
            place = (math.log2(row.case.ranks), math.log2(max(1, row.case.bytes)), family)
            self._seen[row.case.impl, row.case.algorithm].append(place)

    def family(self, case: Case) -> tuple[str, str]:
        """The family to take for a case, and how that was found."""
        if not patterns.is_switching(case.algorithm):
            known = patterns.family_of(case)
            return (known, "by its name") if known else (patterns.guess(case), "unknown: a guess")
        votes: dict[str, float] = collections.defaultdict(float)
        for scale, length, family in self._seen.get((case.impl, case.algorithm), ()):
            far = abs(scale - math.log2(case.ranks)) / 3
            far += abs(length - math.log2(max(1, case.bytes)))
            votes[family] += math.exp(-far)
        if not votes:
            return patterns.guess(case), "switches, to which is a guess"
        return max(votes, key=lambda family: votes[family]), "switches, to this at such sizes"

    def pattern(self, case: Case) -> Pattern:
        """What the case sends."""
        return patterns.pattern(case, self.family(case)[0])
