"""`gradred simulate training`: from two tables to a record and a page of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gradred_lab.simulate import accuracy, assumed, throughput, training_validation
from gradred_lab.simulate.training import Outcome, Trainings

SCHEMA = "gradred-simulate-training/1"


def training(calibrate: str, rows: str) -> dict[str, object]:
    """Predict each row of one table by the measurements of another.

    Raises:
        UsageError: a table is not as it should be.
    """
    fit, asked = throughput.read_fit(calibrate), throughput.read_rows(rows)
    tried = training_validation.attempts(fit)
    reach = training_validation.widths(tried)
    model = Trainings(fit)
    outcomes = [model.predict(one) for one in asked]
    return {
        "schema": SCHEMA,
        "kind": "predicted (simulated), not measured",
        "calibrate": calibrate,
        "band_percent": round(100 * accuracy.QUANTILE),
        "rows": [
            {**one.columns(), **_columns(outcome, reach)}
            for one, outcome in zip(asked, outcomes, strict=True)
        ],
        "assumed": assumed.of_training(),
        "cross_validation": {
            **training_validation.summary(tried, reach),
            "not_compared": training_validation.not_compared(tried, outcomes),
        },
    }


def _columns(outcome: Outcome, widths: dict[str, float]) -> dict[str, object]:
    reach = widths[outcome.step] * outcome.deviation
    ends = (-reach, 0.0, reach)
    low, middle, high = (float(f"{math.exp(outcome.mean + end):.6g}") for end in ends)
    return {
        "predicted_images_per_s": middle,
        "low_images_per_s": low,
        "high_images_per_s": high,
        "reason": f"predicted (simulated): {outcome.reason}",
    }


def text(record: Mapping[str, object]) -> str:
    """A page: how well the model did on what was left out, and how much it predicted."""
    validated = record["cross_validation"]
    rows = record["rows"]
    assert isinstance(validated, dict)
    assert isinstance(rows, list)
    lines = [
        f"{len(rows)} throughputs predicted (simulated), each with a band for "
        f"{record['band_percent']} % of measurements.",
    ]
    for one in validated["not_compared"]:
        lines.append(
            f"Error of {one['rows']} of these: not known. They go {_STEPS[one['step']]}, and no "
            f"such step could be left out of {record['calibrate']}. Their band is a guess."
        )
    guesses = record["assumed"]
    assert isinstance(guesses, dict)
    return "\n".join([*lines, *_compared(validated), "", *assumed.text(guesses)])


_STEPS = {
    "inside": "to more GPUs of one node",
    "across": "from measurements within one node to several nodes",
    "between": "from several nodes to other numbers of nodes",
    "elsewhere": "to a work that was measured nowhere",
}
"""Where a prediction goes from what was measured, in words."""


def _compared(validated: Mapping[str, Sequence[Mapping[str, object]]]) -> list[str]:
    """The tables of errors; nothing if nothing could be left out."""
    if not validated["by_source"]:
        return []
    lines = [
        "Error of such predictions where they can be compared: the largest number of GPUs was left "
        "out (of a sixth of the settings; or of all, so that no network between nodes was seen).",
        "",
        f"{'left out':44}{'rows':>6}{'median':>9}{'95th':>8}{'in band':>9}",
    ]
    for part in ("by_source", "by_scheduler", "by_framework"):
        lines += _section(validated[part])
    lines += ["", "Furthest off, and why:"] if validated["worst"] else []
    for one in validated["worst"]:
        lines.append(
            f"  {one['error_percent']:.0f} %: {one['model']}, {one['framework']}, "
            f"{one['gpus']} GPUs, {one['network']}: {one['why']}"
        )
    return lines


def _section(entries: Sequence[Mapping[str, object]]) -> list[str]:
    lines = []
    for entry in entries:
        words = [value for value in entry.values() if isinstance(value, str) and value]
        name = " ".join(words) or "no scheduler named"
        for how in ("setting_left_out", "network_unseen"):
            chosen = entry.get(how)
            if isinstance(chosen, dict):
                lines.append(
                    f"{name:44.44}{chosen['rows']:6d}{chosen['median_error_percent']:8.1f}%"
                    f"{chosen['p95_error_percent']:7.1f}%{chosen['within_band_percent']:8.0f}%  "
                    f"{how.replace('_', ' ')}"
                )
    return lines
