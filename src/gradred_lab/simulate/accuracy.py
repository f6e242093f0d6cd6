"""How far predictions lie from what was measured, in percent."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

QUANTILE = 0.90  # of the measurements that a band is to hold
_MEDIAN = re.compile(r"medians? (?:of )?(\d+(?:\.\d+)?)(?: to (\d+(?:\.\d+)?))? %")
NORMAL = 1.645  # deviations to both sides that hold as many of a normal distribution


@dataclass(frozen=True)
class Trial:
    """A measurement, predicted from others: logarithms, and the deviation that was claimed."""

    measured: float
    predicted: float
    deviation: float

    @property
    def percent(self) -> float:
        """How far the prediction lies from the measurement."""
        return 100 * abs(math.expm1(self.predicted - self.measured))

    @property
    def far(self) -> float:
        """The same as a logarithm."""
        return abs(self.predicted - self.measured)

    @property
    def deviations(self) -> float:
        """The distance of the prediction from the measurement, in claimed deviations."""
        return self.far / max(self.deviation, 1e-9)


def stated(error: str) -> float | None:
    """The largest median that a text names as an error, as a share; None: it names none."""
    found = [float(one) for pair in _MEDIAN.findall(error) for one in pair if one]
    return max(found) / 100 if found else None


@dataclass(frozen=True)
class Accuracy:
    """The errors of several trials in percent: the median, the 95th percentile, the largest."""

    rows: int
    median: float
    p95: float
    largest: float
    bias: float
    within_band: float

    def errors(self) -> dict[str, float | int]:
        """Return the fields about errors as the JSON holds them."""
        return {
            "rows": self.rows,
            "median_error_percent": round(self.median, 3),
            "p95_error_percent": round(self.p95, 3),
            "largest_error_percent": round(self.largest, 3),
            "bias_percent": round(self.bias, 3),
        }

    def record(self) -> dict[str, float | int]:
        """Return all fields as the JSON holds them."""
        return {**self.errors(), "within_band_percent": round(self.within_band, 1)}


def accuracy(trials: Sequence[Trial], width: float) -> Accuracy:
    """Summary of at least one trial; a band reaches `width` deviations to both sides."""
    errors = np.array([trial.percent for trial in trials])
    signed = np.array([trial.predicted - trial.measured for trial in trials])
    inside = np.array([trial.deviations <= width for trial in trials])
    return Accuracy(
        len(trials),
        float(np.median(errors)),
        float(np.percentile(errors, 95)),
        float(errors.max()),
        float(100 * np.expm1(np.median(signed))),
        float(100 * inside.mean()),
    )
