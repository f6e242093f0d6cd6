"""Cross-validation of training: numbers of GPUs are left out and predicted from smaller ones."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradred_lab.simulate import accuracy
from gradred_lab.simulate.accuracy import Trial
from gradred_lab.simulate.links import is_server
from gradred_lab.simulate.throughput import Speed, Training
from gradred_lab.simulate.training import Outcome, Trainings

_FOLDS = 6
_WORST = 8  # number of reported trials with the largest errors
_NARROWEST, _WIDEST = 1.0, 3.0  # deviations to both sides of a band
STEPS = ("inside", "across", "between", "elsewhere")


@dataclass(frozen=True)
class Attempt:
    """A measured throughput at the largest scale of its setting, predicted without it.

    `is_whole` says that all settings' largest scales were left out with it, and that no other
    setting could tell of the network between nodes.
    """

    speed: Speed
    is_whole: bool
    step: str
    trial: Trial


def attempts(rows: Sequence[Speed]) -> list[Attempt]:
    """Leave out the largest scale of each setting: a sixth of the settings at a time, and all."""
    found: list[Attempt] = []
    for is_whole, kept, left in _folds(rows):
        model = Trainings(kept)
        for speed in left:
            outcome = model.predict(speed.training)
            trial = Trial(math.log(speed.images_per_s), outcome.mean, outcome.deviation)
            found.append(Attempt(speed, is_whole, outcome.step, trial))
    return found


def _folds(rows: Sequence[Speed]) -> Iterator[tuple[bool, list[Speed], list[Speed]]]:
    largest: dict[Training, int] = collections.defaultdict(int)
    for row in rows:
        setting = row.training.setting
        largest[setting] = max(largest[setting], row.training.gpus)
    left = [
        i
        for i, row in enumerate(rows)
        if row.training.gpus > 1 and row.training.gpus == largest[row.training.setting]
    ]
    folds = [(False, left[k::_FOLDS]) for k in range(_FOLDS)]
    for is_whole, chosen in [*folds, (True, left)]:
        out = set(chosen)
        kept = [row for i, row in enumerate(rows) if i not in out]
        if kept and out:
            yield is_whole, kept, [rows[i] for i in chosen]


def widths(found: Sequence[Attempt]) -> dict[str, float]:
    """Deviations that a band must reach to hold 90 %, by the step from what was measured."""
    groups: dict[str, list[Trial]] = {step: [] for step in STEPS}
    for attempt in found:
        groups[attempt.step].append(attempt.trial)
    return {
        step: min(_WIDEST, max(_NARROWEST, accuracy.width(trials) or accuracy.NORMAL))
        for step, trials in groups.items()
    }


def summary(found: Sequence[Attempt], reach: dict[str, float]) -> dict[str, object]:
    """Return the summary of all attempts as the JSON holds it."""
    return {
        "method": (
            "the largest number of GPUs of each setting was left out and predicted from smaller "
            "ones: a sixth of the settings at a time, and (network_unseen) of all settings at once"
        ),
        "all": _entry(found, reach),
        "by_source": _by(found, reach, lambda t: {"source": t.source, "precision": t.precision}),
        "by_scheduler": _by(
            found,
            reach,
            lambda t: {"scheduler": t.scheduler, "framework": t.framework if t.scheduler else ""},
        ),
        "by_framework": _by(
            found, reach, lambda t: {"framework": t.framework, "precision": t.precision}
        ),
        "worst": _worst(found),
    }


def not_compared(found: Sequence[Attempt], outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """How many predictions take a step from what was measured that no trial took."""
    tried = {attempt.step for attempt in found}
    counts = collections.Counter(outcome.step for outcome in outcomes)
    return [
        {"step": step, "rows": counts[step]} for step in STEPS if counts[step] and step not in tried
    ]


def _worst(found: Sequence[Attempt]) -> list[dict[str, object]]:
    """The trials furthest off, one of each model and framework, with the likely cause."""
    first: dict[tuple[str, ...], Attempt] = {}
    for attempt in sorted(found, key=lambda one: -one.trial.percent):
        at = attempt.speed.training
        first.setdefault((at.model, at.framework, at.network, at.precision), attempt)
    return [
        {
            "model": attempt.speed.training.model,
            "framework": attempt.speed.training.framework,
            "network": attempt.speed.training.network,
            "scheduler": attempt.speed.training.scheduler,
            "gpus": attempt.speed.training.gpus,
            "error_percent": round(attempt.trial.percent, 1),
            "why": _why(attempt),
        }
        for attempt in list(first.values())[:_WORST]
    ]


def _why(attempt: Attempt) -> str:
    at = attempt.speed.training
    if attempt.step == "elsewhere":
        return "neither its setting nor its work on one device was left"
    if is_server(at) and at.nodes > 1:
        return "parameter servers across nodes: no two settings of them are alike"
    if attempt.step == "across" and attempt.is_whole:
        return "no run across nodes was left, so the network counts by its name"
    if attempt.trial.predicted > attempt.trial.measured:
        return "something beside communication slows this many GPUs, such as the node's input"
    return "its messages overlap or its network does better than in like settings"


def _by(
    found: Sequence[Attempt], reach: dict[str, float], name: Callable[[Training], dict[str, str]]
) -> list[dict[str, object]]:
    groups: dict[tuple[str, ...], list[Attempt]] = collections.defaultdict(list)
    for attempt in found:
        groups[tuple(name(attempt.speed.training).values())].append(attempt)
    return [
        {**name(groups[key][0].speed.training), **_entry(groups[key], reach)}
        for key in sorted(groups)
    ]


def _entry(found: Sequence[Attempt], reach: dict[str, float]) -> dict[str, object]:
    entry: dict[str, object] = {}
    for name, is_whole in (("setting_left_out", False), ("network_unseen", True)):
        trials = [
            Trial(a.trial.measured, a.trial.predicted, a.trial.deviation * reach[a.step])
            for a in found
            if a.is_whole == is_whole
        ]
        if trials:
            entry[name] = accuracy.accuracy(trials, 1.0).record()
    return entry
