"""`gradred simulate allreduce`: from two tables to a record and a page of text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gradred.simulate import accuracy, measured, validation
from gradred.simulate.allreduce import Clusters, Prediction, banded, cluster_of
from gradred.simulate.costs import Prior
from gradred.simulate.measured import Case

SCHEMA = "gradred-simulate-allreduce/1"

_NAMES = {"segment": "segment_bytes"}  # columns whose name is no word of ours


def allreduce(calibrate: str, rows: str) -> dict[str, object]:
    """Predict each row of one table by the measurements of another.

    Raises:
        UsageError: a table is not as it should be.
    """
    fit, cases = measured.read_fit(calibrate), measured.read_rows(rows)
    prior = Prior()
    tried = validation.attempts(fit, prior)
    bands = validation.widths(tried)
    model = Clusters(fit, prior)
    guess = model.guess(cases)
    predictions = [
        banded(guess, i, bands.of(cluster_of(case)), model.reason(case))
        for i, case in enumerate(cases)
    ]
    return {
        "schema": SCHEMA,
        "kind": "predicted (simulated), not measured",
        "calibrate": calibrate,
        "band_percent": round(100 * accuracy.QUANTILE),
        "rows": [row(case, one) for case, one in zip(cases, predictions, strict=True)],
        "cross_validation": validation.summary(tried, bands),
    }


def row(case: Case, prediction: Prediction) -> dict[str, object]:
    """A row of the record: the columns of the table, then what is predicted."""
    given = {_NAMES.get(name, name): value for name, value in dataclasses.asdict(case).items()}
    return {
        **given,
        "predicted_us": float(f"{prediction.us:.6g}"),
        "low_us": float(f"{prediction.low_us:.6g}"),
        "high_us": float(f"{prediction.high_us:.6g}"),
        "reason": f"predicted (simulated): {prediction.reason}",
    }


def text(record: Mapping[str, object]) -> str:
    """A page: how well the model did on what was left out, and how much it predicted."""
    validated = record["cross_validation"]
    rows = record["rows"]
    assert isinstance(validated, dict)
    assert isinstance(rows, list)
    lines = [
        f"{len(rows)} times predicted (simulated), each with a band for "
        f"{record['band_percent']} % of measurements.",
        "Error of such predictions where they can be compared: whole scales were left out and "
        "predicted from the others (from smaller ones alone: extrapolated).",
        "",
        f"{'left out':44}{'rows':>6}{'median':>9}{'95th':>8}{'in band':>9}",
    ]
    for part in ("by_scale", "by_algorithm"):
        lines += _section(validated[part])
    return "\n".join(lines)


def _section(entries: Sequence[Mapping[str, object]]) -> list[str]:
    lines = []
    for entry in entries:
        name = " ".join(str(value) for value in entry.values() if not isinstance(value, dict))
        chosen = entry.get("extrapolated", entry["all"])
        how = "extrapolated" if "extrapolated" in entry else "others"
        assert isinstance(chosen, dict)
        lines.append(
            f"{name:44.44}{chosen['rows']:6d}{chosen['median_error_percent']:8.1f}%"
            f"{chosen['p95_error_percent']:7.1f}%{chosen['within_band_percent']:8.0f}%  {how}"
        )
    return lines
