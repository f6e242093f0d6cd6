"""How far predictions of what was not measured are off, beside their goals and linear scaling.

    python benchmarks/predictions.py --allreduce allreduce_clusters_fit.csv \\
        --training iteration_scaling.csv --out benchmarks/results

Both tables are cross-validated: of docs/simulate.md, with its columns. It prints the errors by
system and step, then the goals of the project, and writes a record of each table.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import simulated_iterations

import gradred
from gradred._util import cpu
from gradred_lab.simulate import (
    accuracy,
    left_out,
    links,
    measured,
    report,
    throughput,
    training_report,
    training_validation,
    validation,
)
from gradred_lab.simulate.accuracy import Trial
from gradred_lab.simulate.allreduce import Clusters
from gradred_lab.simulate.costs import Prior
from gradred_lab.simulate.throughput import Speed
from gradred_lab.simulate.training import Trainings
from gradred_lab.simulate.training_validation import Validated

THREE = ("BSP", "WFBP", "MG-WFBP")


@dataclass(frozen=True)
class Goal:
    """Percents that the errors of some left-out rows are to stay below; 0: none was set."""

    name: str
    median: float
    p95: float
    chosen: Callable[[object], bool]


def _is_one_of_three(one: object) -> bool:
    assert isinstance(one, training_validation.Attempt)
    at = one.speed.training
    known = one.with_it == "setting_left_out"
    return known and at.scheduler in THREE and not links.is_server(at)


def _is_of_dlperf(precision: str) -> Callable[[object], bool]:
    def chosen(one: object) -> bool:
        assert isinstance(one, training_validation.Attempt)
        at = one.speed.training
        whose = at.source.startswith("DLPerf v") and at.precision == precision
        return whose and one.with_it == "setting_left_out"

    return chosen


def _is_on(system: str) -> Callable[[object], bool]:
    def chosen(one: object) -> bool:
        assert isinstance(one, validation.Attempt)
        return one.case.system == system and one.step == "extrapolated, near"

    return chosen


TRAINING = (
    Goal("three schedulers, 2 nodes", 2, 0, _is_one_of_three),
    Goal("DLPerf fp32, one node", 4, 0, _is_of_dlperf("fp32")),
    Goal("DLPerf amp, one node", 10, 0, _is_of_dlperf("amp")),
)
ALLREDUCE = (
    Goal("allreduce on Leonardo", 3, 12, _is_on("Leonardo")),
    Goal("allreduce on MareNostrum5", 6, 30, _is_on("MareNostrum5")),
)


def _line(goal: Goal, trials: Sequence[Trial], linear: Sequence[Trial]) -> dict[str, object]:
    found = accuracy.accuracy(trials, 1.0).errors()
    reached = float(found["median_error_percent"]) <= goal.median
    if goal.p95:
        reached = reached and float(found["p95_error_percent"]) <= goal.p95
    return {
        "goal": goal.name,
        "median_goal_percent": goal.median,
        "p95_goal_percent": goal.p95 or None,
        **found,
        "linear": accuracy.accuracy(linear, 1.0).errors() if linear else None,
        "is_reached": reached,
    }


def of_training(table: str) -> dict[str, object]:
    """The record of throughputs, with the goals' lines."""
    rows = throughput.read_fit(table)
    found = training_validation.attempts(rows)
    validated = Validated(found)
    lines = []
    for goal in TRAINING:
        own = [one for one in found if goal.chosen(one)]
        trials = [validated.chosen(one) for one in own]
        lines.append(_line(goal, trials, [one.linear for one in own if one.linear]))
    checked = training_validation.summary(found, validated)
    return {
        **_about(training_report.SCHEMA, table),
        "goals": lines,
        "of_linear": of_linear(rows),
        "cross_validation": checked,
    }


def of_linear(rows: Sequence[Speed]) -> list[dict[str, object]]:
    """Percent of linear scaling, published and simulated, of ResNet-50 on 8 V100 by 10 GbE."""
    found: list[dict[str, object]] = []
    model = Trainings(rows)
    for row in rows:
        at = row.training
        chosen = at.model == "ResNet-50" and at.gpus == 8 and at.network.endswith("10 GbE TCP")
        if not chosen or at.scheduler not in THREE or links.is_server(at):
            continue
        one = model.one(at)
        seconds = None if one is None else simulated_iterations.predicted(at, one)
        if one and seconds:
            shares = (round(100 * one / each, 1) for each in (row.seconds, seconds))
            names = ("published_percent", "simulated_percent")
            found.append({"scheduler": at.scheduler, **dict(zip(names, shares, strict=True))})
    return found


def of_allreduce(table: str) -> dict[str, object]:
    """The record of allreduces, with the goals' lines."""
    rows, prior = measured.read_fit(table), Prior()
    found = validation.attempts(rows, prior)
    errors = validation.errors(found, rows, Clusters(rows, prior))
    lines = [
        _line(goal, [one.trial for one in found if goal.chosen(one)], []) for goal in ALLREDUCE
    ]
    checked = validation.summary(found, errors)
    return {**_about(report.SCHEMA, table), "goals": lines, "cross_validation": checked}


def _about(schema: str, table: str) -> dict[str, object]:
    return {
        "schema": schema,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "what": "cross-validation of predictions (simulated), not measurements",
        "calibrate": {"name": Path(table).name, "sha256": sha256(table)},
        "versions": {"gradred": gradred.__version__, "python": platform.python_version()},
        "machine": {"cpu": cpu.model()},
        "band_percent": round(100 * accuracy.QUANTILE),
    }


def sha256(table: str) -> str:
    """The digest of a table, since those of other dates may have other rows."""
    return hashlib.sha256(Path(table).read_bytes()).hexdigest()


def text(record: dict[str, object]) -> list[str]:
    """Errors by system and step, then the goals."""
    checked, goals = record["cross_validation"], record["goals"]
    assert isinstance(checked, dict)
    assert isinstance(goals, list)
    lines = [*left_out.text(checked["by_step"]), ""]
    lines.append(
        f"{'goal':30}{'rows':>6}{'median':>9}{'<=':>6}{'95th':>9}{'<=':>6}{'linear':>9}  reached"
    )
    for one in goals:
        linear = "-" if one["linear"] is None else f"{one['linear']['median_error_percent']:.1f}%"
        lines.append(
            f"{one['goal']:30}{one['rows']:6}{one['median_error_percent']:8.1f}%"
            f"{one['median_goal_percent']:5g}%{one['p95_error_percent']:8.1f}%"
            f"{one['p95_goal_percent'] or '-'!s:>6}{linear:>9}  "
            f"{'yes' if one['is_reached'] else 'no'}"
        )
    shares = record.get("of_linear", [])
    assert isinstance(shares, list)
    for one in shares:
        off = abs(one["published_percent"] - one["simulated_percent"])
        lines.append(
            f"8 V100 by 10 GbE, {one['scheduler']}: {one['published_percent']} % of linear "
            f"published, {one['simulated_percent']} % simulated; within 5 points: "
            f"{'yes' if off <= 5 else 'no'}"
        )
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--allreduce", required=True, help="a table of allreduces (CSV)")
    parser.add_argument("--training", required=True, help="a table of throughputs (CSV)")
    parser.add_argument("--out", required=True, help="the folder of the records")
    options = parser.parse_args()
    for kind, record in (
        ("allreduce", of_allreduce(options.allreduce)),
        ("training", of_training(options.training)),
    ):
        print(*text(record), sep="\n", flush=True)
        path = Path(options.out) / f"predicted-{kind}-{str(record['date'])[:10]}.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
