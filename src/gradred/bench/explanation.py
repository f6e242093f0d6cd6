"""The plan of a call, the reason for it, and its predicted cost; needs no ranks and no MPI."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from gradred import _core, config, ops, plans, schedules, wire
from gradred.schedules import Cost, Schedule, Step, recv, send, work

KINDS = {row["schedules"]: row for row in _core.call_kinds()}
COLLECTIVES = tuple(KINDS)
REDUCING = tuple(name for name, row in KINDS.items() if row["reduces"])

_DRAWN_RANKS, _DRAWN_ROUNDS = 8, 16


@dataclasses.dataclass(frozen=True)
class Question:
    """A call, by ranks that need not exist."""

    collective: str
    op: str
    dtype: str
    nbytes: int
    """The bytes of the vector; of one rank's block if the collective has blocks."""
    host_of: tuple[int, ...]
    """The host of each rank; hosts are numbered in the order of their first rank."""
    wire: str = ""
    """The form in which data cross between hosts; empty: as they are."""

    def text(self) -> str:
        """Return the question as text for `from_text`, to pass it to a rank."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Question:
        """Read the text that `text` has written."""
        values: dict[str, Any] = json.loads(text)
        return cls(**values | {"host_of": tuple(values["host_of"])})

    @property
    def ranks(self) -> int:
        """The number of ranks that make the call."""
        return len(self.host_of)

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return max(self.host_of) + 1

    @property
    def vector_bytes(self) -> int:
        """The bytes of the whole vector that a schedule cuts into chunks."""
        return self.nbytes * (self.ranks if KINDS[self.collective]["has_blocks"] else 1)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The plan, and the schedule that it executes or that describes it."""

    plan: str
    medium: str
    """The transport of its data: `memory`, `messages`, `mpi` (the MPI's own calls) or `none`."""
    slices: int
    parameters: dict[str, int | str | list[int]]
    reason: str
    schedules: list[Schedule]
    """The schedules of all ranks, or of the first ones; empty if the plan has no schedule."""
    cost: Cost | None
    """The cost for all ranks."""
    seconds: float
    """The selector's estimate of the plan."""
    model: Model
    """The parameters of that estimate."""
    about: str
    """A description of the schedule."""
    formula: str
    paper: str


@dataclasses.dataclass(frozen=True)
class Model:
    """The parameters of the cost model, which `schedules.cost` explains, and their source."""

    alpha: float
    beta: float
    gamma: float
    gap: float
    delta: float
    alpha_inside: float
    beta_inside: float
    far: float
    source: str
    call: float = 0.0
    """Seconds of a call that moves nothing, if measured; else 0."""

    def seconds(self, cost: Cost, nbytes: int, slices: int) -> float:
        """Return the time of an operation on a vector of `nbytes` bytes."""
        links = {name: one for name, one in vars(self).items() if name not in ("source", "call")}
        return self.call + cost.seconds(nbytes, slices=slices, **links)


def answer(question: Question, figures: str = "") -> Answer:
    """Ask gradred's own selector, with this process's settings.

    `figures` is the text of a file of figures measured on such hosts; empty: the built-in ones.

    Raises:
        UsageError: the type lacks the operation, or GRADRED_PLAN is not possible for the call.
    """
    if question.collective in REDUCING:
        ops.require(question.op, question.dtype, f"{question.op} of {question.dtype}")
    wire.require(question.wire or None, question.dtype, question.op, question.collective)
    choice = _core.choose_plan(
        question.collective,
        question.nbytes,
        question.host_of,
        shared_memory=bool(config.get("shm")),
        plan=_plan_asked(question.collective),
        slices=_slices_asked(question.collective),
        op=question.op or "sum",
        dtype=question.dtype,
        figures=figures,
        one_order=config.get("deterministic") == "size",
        wire=question.wire,
    )
    return _explained(question, choice)


def _plan_asked(collective: str) -> str:
    """Return GRADRED_PLAN if it is a plan of this collective; others ignore allreduce's plans."""
    plan: str = config.get("plan") or ""
    if collective == "allreduce" and plan:
        plans.resolve(plan, collective, 0, 1)
    return plan if plan in plans.names(collective) else ""


def _slices_asked(collective: str) -> int:
    return 1 if KINDS[collective]["has_blocks"] else (config.get("slices") or 0)


def _explained(question: Question, choice: _core._ChosenPlan) -> Answer:
    reason, spec = choice["reason"], choice["specification"]
    found: list[Schedule] = []
    cost: Cost | None = None
    about, formula, paper = choice["about"], "", ""
    if spec is not None:
        row = _row(question.collective, spec["algorithm"])
        about, formula, paper = row["about"], row["cost"], row["paper"]
        found = [_made(question, spec, rank) for rank in range(min(question.ranks, _DRAWN_RANKS))]
        cost = schedules.coefficients(
            spec["algorithm"],
            question.ranks,
            collective=question.collective,
            host_of=question.host_of,
            **spec["parameters"],
        )
        reason += f"; {spec['reason']}" if spec["reason"] else ""
    elif choice["medium"] == "memory":
        found, about = _from_root(question.ranks), "the root sends to every rank"
        cost = _core.schedule_cost(found)
        formula = "alpha + (p-1) n beta"
        reason += "; each rank reads what the root wrote"
    return Answer(
        plan=choice["plan"],
        medium=choice["medium"],
        slices=choice["slices"],
        parameters=dict(choice["parameters"]),
        reason=reason,
        schedules=found,
        cost=cost,
        seconds=choice["seconds"],
        model=Model(**choice["model"]),
        about=about,
        formula=formula,
        paper=paper,
    )


def _row(collective: str, name: str) -> schedules.Algorithm:
    rows = schedules.algorithms()
    return next(row for row in rows if (row["collective"], row["name"]) == (collective, name))


def _made(question: Question, spec: _core._Specification, rank: int) -> Schedule:
    return schedules.make(
        spec["algorithm"],
        rank,
        question.ranks,
        collective=question.collective,
        **spec["parameters"],
    )


def _from_root(size: int) -> list[Schedule]:
    """Make a broadcast in one round: shared memory does this, but no plan over messages."""
    root = [send(peer, work(0)) for peer in range(1, size)]
    first = [root, *[[recv(0, work(0))]] * (min(size, _DRAWN_RANKS) - 1)]
    return [
        Schedule([steps], rank=rank, size=size, chunks=1, collective="bcast", name="from_root")
        for rank, steps in enumerate(first)
    ]


def predicted(question: Question, answer: Answer, model: Model) -> float | None:
    """Return the seconds in the model; None if nothing is known."""
    if model is answer.model or answer.medium == "mpi":
        return answer.seconds if math.isfinite(answer.seconds) else None
    if answer.cost is None:
        return None
    return model.seconds(answer.cost, question.vector_bytes, answer.slices)


def picture(answer: Answer, columns: int | None = None) -> tuple[str, int]:
    """Return the schedule as text, shortened if it is long, and the number of its rounds.

    Rounds that do not fit into `columns` are left out. None: any width.
    """
    if not answer.schedules:
        return "", 0
    first = answer.schedules[0]
    shown = answer.schedules[:_DRAWN_RANKS]
    steps = [schedule.rounds for schedule in shown]
    rounds = max(map(len, steps))
    drawn = min(rounds, _DRAWN_ROUNDS)
    text = _drawn(shown, steps, drawn)
    is_narrow = False
    while columns is not None and drawn > 1 and _width(text) > columns:
        drawn, is_narrow = drawn - 1, True
        text = _drawn(shown, steps, drawn)
    left_out = [(first.size - len(shown), "ranks"), (rounds - drawn, "rounds")]
    more = " and ".join(f"{number} {what}" for number, what in left_out if number > 0)
    if more:
        text += f"\n... and {more} more"
    if is_narrow:
        text += "; a pipe shows more"
    return text, rounds


def _drawn(
    shown: Sequence[Schedule], steps: Sequence[Sequence[Sequence[Step]]], rounds: int
) -> str:
    return schedules.draw([_beginning(*pair, rounds) for pair in zip(shown, steps, strict=True)])


def _width(text: str) -> int:
    return max(map(len, text.splitlines()[1:]))  # without the title


def _beginning(schedule: Schedule, steps: Sequence[Sequence[Step]], rounds: int) -> Schedule:
    return Schedule(
        steps[:rounds],
        rank=schedule.rank,
        size=schedule.size,
        chunks=schedule.chunks,
        collective=schedule.collective,
        root=schedule.root,
        name=schedule.name,
    )
