"""A Gaussian process over what messages cost: robust, from logarithms, with its own doubt.

The time of a case is a sum over messages, so its logarithm is no linear function of the logarithms
of the messages' costs. The process is therefore made linear around its last estimate, several times
(Gauss-Newton). What cases share (a family, an algorithm, a run) is a covariance of their own parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

_ROUNDS = 10
_TRUSTING = 5  # rounds in which every measurement counts: the first guesses are far off
_TAIL = 4.0  # degrees of freedom of Student's t: how little a measurement far off counts
_LEAST_TRUST = 0.03
_SETTLED = 0.02  # a step so small, of a logarithm, is the last


@dataclass(frozen=True)
class Part:
    """A part of the latent costs: how alike cases are in it, and how alike its unknowns are."""

    alike: Callable[[Floats, Floats], Floats]
    unknowns: slice
    covariance: Floats


@dataclass(frozen=True)
class Estimate:
    """Logarithms of times, and their standard deviations without the noise of a measurement."""

    mean: Floats
    deviation: Floats


Linear: TypeAlias = Callable[[Floats], tuple[Floats, Floats]]
"""Logarithms of the times and their slopes, by the unknowns of each case (cases x unknowns)."""


class Process:
    """The process, given measurements."""

    def __init__(
        self,
        parts: Sequence[Part],
        traits: Floats,
        linear: Linear,
        measured: Floats,
        noise: Floats,
    ) -> None:
        """Calibrate.

        Args:
            parts: what the costs consist of.
            traits: of each measured case, what `Part.alike` looks at.
            linear: logarithm of the time and its slopes, of each measured case.
            measured: logarithms of the measured times.
            noise: standard deviation of each of them.
        """
        self._parts, self._traits = parts, traits
        self._alike = [part.alike(traits, traits) for part in parts]
        unknowns = max(part.unknowns.stop for part in parts)
        latent = np.zeros((len(measured), unknowns))
        trust = np.ones(len(measured))
        for round_ in range(_ROUNDS):
            value, slopes = linear(latent)
            gram = self._gram(self._alike, slopes, slopes)
            spread = noise**2 / trust
            self._factor = np.linalg.cholesky(gram + np.diag(spread + 1e-9))
            target = measured - value + np.einsum("ru,ru->r", slopes, latent)
            self._weights = self._solve(target)
            self._slopes = slopes
            moved = self._latent(self._alike) - latent
            latent = latent + np.clip(moved, -1.5, 1.5)
            if round_ > _TRUSTING + 1 and float(np.abs(moved).max()) < _SETTLED:
                break
            if round_ >= _TRUSTING:
                off = (measured - linear(latent)[0]) ** 2 / noise**2
                trust = np.maximum(_LEAST_TRUST, (_TAIL + 1) / (_TAIL + off))
        self.latent = latent

    def predict(self, traits: Floats, linear: Linear) -> Estimate:
        """Predict cases that were not measured."""
        alike = [part.alike(traits, self._traits) for part in self._parts]
        latent = self._latent(alike)
        mean, slopes = linear(latent)
        cross = self._gram(alike, slopes, self._slopes)
        own = np.zeros(len(mean))
        for part in self._parts:
            mine = slopes[:, part.unknowns]
            same = np.array(
                [part.alike(traits[i : i + 1], traits[i : i + 1])[0, 0] for i in range(len(mean))]
            )
            own += same * np.einsum("ru,uv,rv->r", mine, part.covariance, mine)
        known = np.linalg.solve(self._factor, cross.T)
        variance = own - np.einsum("mr,mr->r", known, known)
        return Estimate(mean, np.sqrt(np.maximum(variance, 0.0)))

    def _gram(self, alike: Sequence[Floats], rows: Floats, columns: Floats) -> Floats:
        total = np.zeros((len(rows), len(columns)))
        for part, same in zip(self._parts, alike, strict=True):
            left = rows[:, part.unknowns] @ part.covariance
            total += same * (left @ columns[:, part.unknowns].T)
        return total

    def _latent(self, alike: Sequence[Floats]) -> Floats:
        """The unknowns of cases that are so much alike the measured ones."""
        pulled = self._weights[:, None] * self._slopes
        latent = np.zeros((len(alike[0]), self._slopes.shape[1]))
        for part, same in zip(self._parts, alike, strict=True):
            latent[:, part.unknowns] += same @ (pulled[:, part.unknowns] @ part.covariance)
        return latent

    def _solve(self, target: Floats) -> Floats:
        half = np.linalg.solve(self._factor, target)
        solved: Floats = np.linalg.solve(self._factor.T, half)
        return solved
