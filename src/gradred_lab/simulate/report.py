"""`gradred simulate allreduce`: from two tables to a record and a page of text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gradred_lab.simulate import accuracy, assumed, left_out, measured, validation
from gradred_lab.simulate.allreduce import Clusters, Prediction, banded
from gradred_lab.simulate.costs import Prior
from gradred_lab.simulate.measured import Case

SCHEMA = "gradred-simulate-allreduce/1"

_NAMES = {"segment": "segment_bytes"}  # columns whose name is not a word of ours


def allreduce(calibrate: str, rows: str) -> dict[str, object]:
    """Predict each row of one table by the measurements of another.

    Raises:
        UsageError: a table is not as it should be.
    """
    fit, cases = measured.read_fit(calibrate), measured.read_rows(rows)
    prior = Prior()
    tried = validation.attempts(fit, prior)
    model = Clusters(fit, prior)
    errors = validation.errors(tried, fit, model)
    guess = model.guess(cases)
    asked = [(validation.system(case), model.step(case)) for case in cases]
    predictions = [
        banded(guess, i, errors.reach(*step), model.reason(case))
        for i, (case, step) in enumerate(zip(cases, asked, strict=True))
    ]
    return {
        "schema": SCHEMA,
        "kind": "predicted (simulated), not measured",
        "calibrate": calibrate,
        "band_percent": round(100 * accuracy.QUANTILE),
        "rows": [
            row(case, one, errors.columns(*step))
            for case, one, step in zip(cases, predictions, asked, strict=True)
        ],
        "assumed": assumed.of_allreduce(),
        "cross_validation": {
            **validation.summary(tried, errors),
            "not_compared": errors.not_known(asked),
        },
    }


def row(case: Case, prediction: Prediction, error: Mapping[str, object]) -> dict[str, object]:
    """A row of the record: the columns of the table, then what is predicted."""
    given = {_NAMES.get(name, name): value for name, value in dataclasses.asdict(case).items()}
    return {
        **given,
        "predicted_us": float(f"{prediction.us:.6g}"),
        "low_us": float(f"{prediction.low_us:.6g}"),
        "high_us": float(f"{prediction.high_us:.6g}"),
        **error,
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
    ]
    for one in validated["not_compared"]:
        lines.append(
            f"Error of {one['rows']} of these, for {one['system']}: not known. They are "
            f"{one['step']}, and no such row could be left out of {record['calibrate']}. "
            "Their band is a guess."
        )
    guesses = record["assumed"]
    assert isinstance(guesses, dict)
    return "\n".join([*lines, *_compared(validated), "", *assumed.text(guesses)])


def _compared(validated: Mapping[str, Sequence[Mapping[str, object]]]) -> list[str]:
    """The tables of errors; nothing if no scale could be left out."""
    if not validated["by_system"]:
        return []
    lines = [
        "Error of such predictions where they can be compared: whole scales were left out and "
        "predicted from smaller ones (or, of the smallest scale, from the others).",
        "near, far: a run of the same week was measured, or only runs of other times were.",
        "",
        *left_out.text(validated["by_step"]),
        "",
        f"{'left out':44}{'rows':>6}{'median':>9}{'95th':>8}{'in band':>9}",
    ]
    for part in ("by_system", "by_scale", "by_algorithm"):
        lines += _section(validated[part])
    return [*lines, "", *_worst(validated["worst"])]


_SHOWN = {
    "extrapolated_near_in_time": "extrapolated, near",
    "extrapolated_far_in_time": "extrapolated, far",
    "all": "from others",
}


def _section(entries: Sequence[Mapping[str, object]]) -> list[str]:
    lines = []
    for entry in entries:
        name = " ".join(str(value) for value in entry.values() if not isinstance(value, dict))
        chosen = [
            how for how in _SHOWN if how in entry and (how != "all" or not _is_extrapolated(entry))
        ]
        for how in chosen:
            found = entry[how]
            assert isinstance(found, dict)
            lines.append(
                f"{name:44.44}{found['rows']:6d}{found['median_error_percent']:8.1f}%"
                f"{found['p95_error_percent']:7.1f}%{found['within_band_percent']:8.0f}%  "
                f"{_SHOWN[how]}"
            )
    return lines


def _is_extrapolated(entry: Mapping[str, object]) -> bool:
    """Whether an entry has trials beyond the kept scales."""
    return "extrapolated" in entry


def _worst(entries: Sequence[Mapping[str, object]]) -> list[str]:
    lines = ["Furthest off, and why:"] if entries else []
    for entry in entries:
        lines.append(
            f"  {entry['error_percent']:.0f} %: {entry['system']}, {entry['nodes']} nodes, "
            f"{entry['algorithm']}, {entry['bytes']} bytes: {entry['why']}"
        )
    return lines
