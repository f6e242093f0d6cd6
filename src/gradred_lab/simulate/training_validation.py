"""Cross-validation of training: numbers of GPUs are left out and predicted from smaller ones."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from gradred_lab.simulate import accuracy
from gradred_lab.simulate.accuracy import Trial
from gradred_lab.simulate.left_out import FEW, Errors, LeftOut
from gradred_lab.simulate.links import is_server
from gradred_lab.simulate.throughput import Speed, Training
from gradred_lab.simulate.training import Trainings

_FOLDS = 6
SHOWN = ("setting_left_out", "network_unseen")
"""What was left out with the trials that are shown by source, scheduler and framework."""
_WORST = 8  # number of reported trials with the largest errors


@dataclass(frozen=True)
class Attempt:
    """A measured throughput, predicted without it: by the model and by linear scaling.

    `with_it` is what was left out with it: the largest scales of a sixth of the settings
    (`setting_left_out`), those of all, so that no other setting knows the network between nodes
    (`network_unseen`), all `several_nodes`, or the `system`.
    """

    speed: Speed
    with_it: str
    step: str
    trial: Trial
    linear: Trial | None

    @property
    def system(self) -> str:
        """The cluster that was measured."""
        return self.speed.training.cluster

    @property
    def kin(self) -> Hashable:
        """What is off for one reason: its setting, or the system that was left out."""
        return self.system if self.with_it == "system" else self.speed.training.setting


def attempts(rows: Sequence[Speed]) -> list[Attempt]:
    """Leave out the largest scale of each setting, all of several nodes, and whole systems."""
    found: list[Attempt] = []
    for with_it, kept, left in _folds(rows):
        model = Trainings(kept)
        for speed in left:
            outcome = model.predict(speed.training)
            measured, linear = math.log(speed.images_per_s), outcome.linear
            found.append(
                Attempt(
                    speed,
                    with_it,
                    outcome.step,
                    Trial(measured, outcome.mean, outcome.deviation),
                    Trial(measured, linear.mean, linear.deviation) if linear else None,
                )
            )
    return found


def _folds(rows: Sequence[Speed]) -> Iterator[tuple[str, list[Speed], list[Speed]]]:
    largest: dict[Training, int] = collections.defaultdict(int)
    for row in rows:
        setting = row.training.setting
        largest[setting] = max(largest[setting], row.training.gpus)
    left = [
        i
        for i, row in enumerate(rows)
        if row.training.gpus > 1 and row.training.gpus == largest[row.training.setting]
    ]
    folds = [("setting_left_out", left[k::_FOLDS]) for k in range(_FOLDS)]
    folds.append(("network_unseen", left))
    several = [i for i, row in enumerate(rows) if row.training.nodes > 1]
    if not set(several) <= set(left):
        folds.append(("several_nodes", several))
    for cluster in sorted({row.training.cluster for row in rows}):
        own = [i for i, row in enumerate(rows) if row.training.cluster == cluster]
        folds.append(("system", own))
    for with_it, chosen in folds:
        out = set(chosen)
        kept = [row for i, row in enumerate(rows) if i not in out]
        if kept and out:
            yield with_it, kept, [rows[i] for i in chosen]


class Validated:
    """What left-out rows say: which steps linear scaling predicts better, and the errors.

    Where the rows of a system and step are less far off by linear scaling, that predicts them.
    The error of each row is that of the way which the rows of other settings choose.
    """

    def __init__(self, found: Sequence[Attempt]) -> None:
        first: dict[tuple[Speed, str], Attempt] = {}
        for attempt in found:
            first.setdefault((attempt.speed, attempt.step), attempt)
        self._by_step: dict[str, list[Attempt]] = collections.defaultdict(list)
        for attempt in first.values():
            self._by_step[attempt.step].append(attempt)
        self.errors = Errors(
            LeftOut(one.system, one.step, one.kin, self.chosen(one)) for one in first.values()
        )

    def is_linear(self, system: str, step: str, without: Hashable = None) -> bool:
        """Whether linear scaling predicts a step on a system; `without` one setting's rows."""
        alike = [one for one in self._by_step.get(step, ()) if one.kin != without]
        own = [one for one in alike if one.system == system]
        pairs = [
            (one.trial, one.linear) for one in (own if len(own) >= FEW else alike) if one.linear
        ]
        if len(pairs) < FEW:
            return False
        return sum(one.far - other.far for one, other in pairs) > 0

    def chosen(self, one: Attempt) -> Trial:
        """The trial of the way that predicts its step, by the rows of other kin."""
        if one.linear and self.is_linear(one.system, one.step, one.kin):
            return one.linear
        return one.trial

    def table(self) -> list[dict[str, object]]:
        """A line for each system and step: errors of what predicts it, beside linear scaling's."""
        return [self._line(line) for line in self.errors.table()]

    def _line(self, line: dict[str, object]) -> dict[str, object]:
        system, step = str(line["system"]), str(line["step"])
        own = [one for one in self._by_step[step] if one.system == system]
        ways = {
            "model": [one.trial for one in own],
            "linear": [one.linear for one in own if one.linear],
        }
        return {
            **line,
            "predicted_by": "linear" if self.is_linear(system, step) else "model",
            **{
                name: accuracy.accuracy(trials, 1.0).errors()
                for name, trials in ways.items()
                if trials
            },
        }


def summary(found: Sequence[Attempt], validated: Validated) -> dict[str, object]:
    """Return the summary of all attempts as the JSON holds it."""
    return {
        "method": (
            "the largest number of GPUs of each setting was left out and predicted from smaller "
            "ones: a sixth of the settings at a time, and (network_unseen) of all settings at "
            "once, and all of several nodes"
        ),
        "by_step": validated.table(),
        "all": _entry(found, validated),
        "by_source": _by(
            found, validated, lambda t: {"source": t.source, "precision": t.precision}
        ),
        "by_scheduler": _by(
            found,
            validated,
            lambda t: {"scheduler": t.scheduler, "framework": t.framework if t.scheduler else ""},
        ),
        "by_framework": _by(
            found, validated, lambda t: {"framework": t.framework, "precision": t.precision}
        ),
        "worst": _worst(found),
    }


def _worst(found: Sequence[Attempt]) -> list[dict[str, object]]:
    """The trials furthest off, one of each model and framework, with the likely cause."""
    first: dict[tuple[str, ...], Attempt] = {}
    shown = [one for one in found if one.with_it in SHOWN]
    for attempt in sorted(shown, key=lambda one: -one.trial.percent):
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
    if is_server(at) and at.nodes > 1:
        return "parameter servers across nodes: no two settings of them are alike"
    if attempt.step.startswith("across unseen"):
        return "no run across nodes was left, so the network counts by its name"
    if attempt.trial.predicted > attempt.trial.measured:
        return "something beside communication slows this many GPUs, such as the node's input"
    return "its messages overlap or its network does better than in like settings"


def _by(
    found: Sequence[Attempt], validated: Validated, name: Callable[[Training], dict[str, str]]
) -> list[dict[str, object]]:
    groups: dict[tuple[str, ...], list[Attempt]] = collections.defaultdict(list)
    for attempt in found:
        groups[tuple(name(attempt.speed.training).values())].append(attempt)
    return [
        {**name(groups[key][0].speed.training), **_entry(groups[key], validated)}
        for key in sorted(groups)
    ]


def _entry(found: Sequence[Attempt], validated: Validated) -> dict[str, object]:
    entry: dict[str, object] = {}
    for name in SHOWN:
        trials = []
        for one in found:
            if one.with_it == name:
                trial, reach = validated.chosen(one), validated.errors.reach(one.system, one.step)
                trials.append(dataclasses.replace(trial, deviation=trial.deviation * reach))
        if trials:
            entry[name] = accuracy.accuracy(trials, 1.0).record()
    return entry
