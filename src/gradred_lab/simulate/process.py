"""A Gaussian process over what messages cost: robust, from logarithms, with its own doubt.

The time of a case is a sum over messages, so its logarithm is not a linear function of the
logarithms of the messages' costs. The process is therefore made linear around its last estimate,
several times (Gauss-Newton), and each time scikit-learn calibrates it: a row is the traits of a
case and the slopes of its logarithm. What cases share (a family, an algorithm, a run) is a
covariance of their own parts.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct, Kernel

from gradred_lab.simulate.accuracy import Floats

_ROUNDS = 10  # of Gauss-Newton, which mostly settles sooner
_TRUSTING = 5  # rounds in which every measurement counts: the first guesses are far off
_TAIL = 4.0  # degrees of freedom of Student's t: how little a measurement far off counts
_LEAST_TRUST = 0.03  # of the precision of one that is very far off, so that none goes wholly
_NARROW = 1e-3  # share of the largest variance below which a direction is left out
_SETTLED = 0.02  # a step so small, of a logarithm, is the last


class On(Kernel):
    """A kernel of some columns alone: of their values, or of their products with a matrix.

    With `once` it is computed once for rows that are the same: cases share most of their traits.
    """

    def __init__(
        self, columns: slice, kernel: Kernel, matrix: Floats | None = None, once: bool = False
    ) -> None:
        self.columns, self.kernel, self.matrix, self.once = columns, kernel, matrix, once

    def __call__(self, x: Floats, y: Floats | None = None, eval_gradient: bool = False) -> Floats:
        """Covariances of rows with others, or with themselves; nothing here has a gradient."""
        rows, places = self._own(x)
        others, other_places = (rows, places) if y is None else self._own(y)
        values: Floats = self.kernel(rows, others)
        return values[np.ix_(places, other_places)] if self.once else values

    def diag(self, x: Floats) -> Floats:
        """How alike each row is to itself."""
        rows, places = self._own(x)
        return np.asarray(self.kernel.diag(rows)[places])

    def is_stationary(self) -> bool:
        """Whether only differences of rows count."""
        return False

    def _own(self, rows: Floats) -> tuple[Floats, Any]:
        """The rows of these columns, and where in them each given row is."""
        own = rows[:, self.columns]
        if self.once:
            distinct, places = np.unique(own, axis=0, return_inverse=True)
            return distinct, places.reshape(-1)  # NumPy 2.0 gives it another shape
        return own if self.matrix is None else own @ self.matrix, slice(None)


@dataclass(frozen=True)
class Part:
    """A part of the latent costs: how alike cases are in it, and how alike its unknowns are."""

    alike: Kernel
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
        first = traits.shape[1]  # of the slopes, in a row
        self._alike = [On(slice(first), part.alike, once=True) for part in parts]
        self._roots = [_root(part.covariance) for part in parts]
        kernel = functools.reduce(
            operator.add,
            [
                alike * On(_behind(first, part.unknowns), DotProduct(sigma_0=0.0), root)
                for part, alike, root in zip(parts, self._alike, self._roots, strict=True)
            ],
        )
        unknowns = max(part.unknowns.stop for part in parts)
        latent = np.zeros((len(measured), unknowns))
        trust = np.ones(len(measured))
        for round_ in range(_ROUNDS):
            value, self._slopes = linear(latent)
            spread = noise**2 / trust
            target = measured - value + np.einsum("ru,ru->r", self._slopes, latent)
            self._regressor = GaussianProcessRegressor(kernel, alpha=spread + 1e-9, optimizer=None)
            self._regressor.fit(np.hstack((traits, self._slopes)), target)
            moved = self._latent(traits) - latent
            latent = latent + np.clip(moved, -1.5, 1.5)
            if round_ > _TRUSTING + 1 and float(np.abs(moved).max()) < _SETTLED:
                break
            if round_ >= _TRUSTING:
                off = (measured - linear(latent)[0]) ** 2 / noise**2
                trust = np.maximum(_LEAST_TRUST, (_TAIL + 1) / (_TAIL + off))

    def predict(self, traits: Floats, linear: Linear) -> Estimate:
        """Predict cases that were not measured."""
        mean, slopes = linear(self._latent(traits))
        _, deviation = self._regressor.predict(np.hstack((traits, slopes)), return_std=True)
        return Estimate(mean, deviation)

    def _latent(self, traits: Floats) -> Floats:
        """The unknowns of cases with these traits."""
        pulled = self._regressor.alpha_[:, None] * self._slopes
        latent = np.zeros((len(traits), self._slopes.shape[1]))
        for part, kernel, root in zip(self._parts, self._alike, self._roots, strict=True):
            alike = kernel(traits, self._traits)
            latent[:, part.unknowns] += (alike @ (pulled[:, part.unknowns] @ root)) @ root.T
        return latent


def _behind(first: int, columns: slice) -> slice:
    return slice(first + columns.start, first + columns.stop)


def _root(covariance: Floats) -> Floats:
    """A narrow matrix whose square is the covariance: what is smooth has few directions."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > _NARROW * values[-1]
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))
