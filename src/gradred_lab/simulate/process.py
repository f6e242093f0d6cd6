"""A Gaussian process over what messages cost: robust, from logarithms, with its own doubt.

The time of a case is a sum over messages, so its logarithm is not a linear function of the
logarithms of the messages' costs. The process is therefore made linear around its last estimate,
several times (Gauss-Newton). What cases share (a family, an algorithm, a run) is a covariance of
their own parts.
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
_NARROW = 1e-3  # share of the largest variance below which a direction is left out
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
        self._roots = [_root(part.covariance) for part in parts]
        self._alike = [part.alike(traits, traits) for part in parts]
        unknowns = max(part.unknowns.stop for part in parts)
        latent = np.zeros((len(measured), unknowns))
        trust = np.ones(len(measured))
        for round_ in range(_ROUNDS):
            value, slopes = linear(latent)
            gram = self._gram(self._alike, slopes, slopes)
            spread = noise**2 / trust
            self._measured = gram + np.diag(spread + 1e-9)
            target = measured - value + np.einsum("ru,ru->r", slopes, latent)
            self._weights: Floats = np.linalg.solve(self._measured, target)
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
        for part, root in zip(self._parts, self._roots, strict=True):
            same = [part.alike(one[None, :], one[None, :])[0, 0] for one in traits]
            own += np.array(same) * ((slopes[:, part.unknowns] @ root) ** 2).sum(axis=1)
        known = np.linalg.solve(self._measured, cross.T)
        variance = own - np.einsum("rm,mr->r", cross, known)
        return Estimate(mean, np.sqrt(np.maximum(variance, 0.0)))

    def _gram(self, alike: Sequence[Floats], rows: Floats, columns: Floats) -> Floats:
        total = np.zeros((len(rows), len(columns)))
        for part, root, same in zip(self._parts, self._roots, alike, strict=True):
            left, right = rows[:, part.unknowns] @ root, columns[:, part.unknowns] @ root
            total += same * (left @ right.T)
        return total

    def _latent(self, alike: Sequence[Floats]) -> Floats:
        """The unknowns of cases that are so much alike the measured ones."""
        pulled = self._weights[:, None] * self._slopes
        latent = np.zeros((len(alike[0]), self._slopes.shape[1]))
        for part, root, same in zip(self._parts, self._roots, alike, strict=True):
            latent[:, part.unknowns] += (same @ (pulled[:, part.unknowns] @ root)) @ root.T
        return latent


def _root(covariance: Floats) -> Floats:
    """A narrow matrix whose square is the covariance: what is smooth has few directions."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > _NARROW * values[-1]
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))
