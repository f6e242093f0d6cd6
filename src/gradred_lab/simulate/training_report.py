"""`gradred simulate training`: from two tables to a record and a page of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gradred_lab.simulate import accuracy, assumed, left_out, throughput, training_validation
from gradred_lab.simulate.training import STEPS, Outcome, Scaled, Trainings
from gradred_lab.simulate.training_validation import Validated

SCHEMA = "gradred-simulate-training/1"


def training(calibrate: str, rows: str) -> dict[str, object]:
    """Predict each row of one table by the measurements of another.

    Raises:
        UsageError: a table is not as it should be.
    """
    fit, asked = throughput.read_fit(calibrate), throughput.read_rows(rows)
    tried = training_validation.attempts(fit)
    validated = training_validation.Validated(tried)
    model = Trainings(fit)
    outcomes = [model.predict(one) for one in asked]
    steps = [(one.cluster, outcome.step) for one, outcome in zip(asked, outcomes, strict=True)]
    return {
        "schema": SCHEMA,
        "kind": "predicted (simulated), not measured",
        "calibrate": calibrate,
        "band_percent": round(100 * accuracy.QUANTILE),
        "rows": [
            {**one.columns(), **_columns(one.cluster, outcome, validated)}
            for one, outcome in zip(asked, outcomes, strict=True)
        ],
        "assumed": assumed.of_training(),
        "cross_validation": {
            **training_validation.summary(tried, validated),
            "not_compared": validated.errors.not_known(steps),
        },
    }


def _columns(system: str, outcome: Outcome, validated: Validated) -> dict[str, object]:
    linear = outcome.linear
    chosen: Outcome | Scaled = outcome
    if linear and validated.is_linear(system, outcome.step):
        chosen = linear
    reach = validated.errors.reach(system, outcome.step) * chosen.deviation
    low, middle, high = (_speed(chosen.mean + end) for end in (-reach, 0.0, reach))
    return {
        "predicted_images_per_s": middle,
        "low_images_per_s": low,
        "high_images_per_s": high,
        "linear_images_per_s": _speed(linear.mean) if linear else None,
        **validated.errors.columns(system, outcome.step),
        "reason": f"predicted (simulated): {chosen.reason}",
    }


def _speed(mean: float) -> float:
    return float(f"{math.exp(mean):.6g}")


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
        where, _, servers = one["step"].partition(",")
        lines.append(
            f"Error of {one['rows']} of these, on {one['system']}: not known. They go "
            f"{STEPS[where]}{servers}, and no such step could be left out of "
            f"{record['calibrate']}. Their band is a guess."
        )
    guesses = record["assumed"]
    assert isinstance(guesses, dict)
    return "\n".join([*lines, *_compared(validated), "", *assumed.text(guesses)])


def _compared(validated: Mapping[str, Sequence[Mapping[str, object]]]) -> list[str]:
    """The tables of errors; nothing if nothing could be left out."""
    if not validated["by_source"]:
        return []
    lines = [
        "Error of such predictions where they can be compared: the largest number of GPUs was left "
        "out (of a sixth of the settings; or of all, so that no network between nodes was seen).",
        "",
        *left_out.text(validated["by_step"]),
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
