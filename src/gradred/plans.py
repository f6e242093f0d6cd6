"""The values of `plan=`: a plan's name, or a schedule of the user, which is validated once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from gradred import _core, schedules
from gradred.errors import UsageError, UsageTypeError, type_of
from gradred.schedules import Schedule

PlanLike: TypeAlias = "str | Schedule | Callable[[int, int], Schedule] | None"

# The largest size for which the schedules of all ranks are verified together. Above it only the
# calling rank's schedule is validated.
_VERIFIED_SIZE = 64


class Plan(NamedTuple):
    """A plan in the form that `_core.Call` takes."""

    name: str = ""
    schedule: Schedule | None = None


_CHOSEN_BY_GRADRED = Plan()


@functools.cache
def names(collective: str) -> list[str]:
    """Return the names of the plans that a call may request, of every plan family."""
    return [name for family in _core.plan_families() for name in family["plans"][collective]]


def resolve(plan: Any, collective: str, rank: int, size: int) -> Plan:
    """Convert the value of `plan=` to a `Plan`.

    Args:
        plan: None; a name; a Schedule of this rank; or a function of rank and size that makes one.
            With a function, the schedules of all ranks are verified (up to 64 ranks).
        collective: the collective of `gradred.schedules.algorithms()`, such as `"allreduce"`.
        rank: the number of this rank.
        size: the number of ranks of the communicator.

    Raises:
        gradred.UsageError: there is no such plan, or the schedule is wrong.
    """
    if plan is None:
        return _CHOSEN_BY_GRADRED
    if isinstance(plan, str):
        return _named(plan, collective)
    if isinstance(plan, Schedule):
        return _own(_by_identity(plan), collective, rank, size)
    if callable(plan):
        return _made(plan, collective, rank, size)
    raise UsageTypeError(
        f"plan={plan!r}",
        f"{type_of(plan)} is not a plan",
        "Give a name, a gradred.schedules.Schedule, or a function (rank, size) -> Schedule",
    )


@functools.cache
def _named(name: str, collective: str) -> Plan:
    known = names(collective)
    if name not in known:
        found = f"no plan for {collective} has that name"
        raise UsageError(f"plan={name!r}", found, _near(name, known))
    return Plan(name)


def _near(name: str, known: Sequence[str]) -> str:
    import difflib  # imported here because it is seldom needed

    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Use one of {', '.join(known)}"


class _by_identity:  # noqa: N801 (a wrapper, used like a function)
    """A schedule that equals only itself, since a comparison of all its steps costs too much."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _by_identity) and self.schedule is other.schedule

    def __hash__(self) -> int:
        return id(self.schedule)


@functools.lru_cache(maxsize=64)
def _own(holder: _by_identity, collective: str, rank: int, size: int) -> Plan:
    schedule = holder.schedule
    _check(schedule, collective, rank, size)
    schedules.validate(schedule)
    return Plan("", schedule)


@functools.lru_cache(maxsize=64)
def _made(make: Callable[[int, int], Schedule], collective: str, rank: int, size: int) -> Plan:
    if size > _VERIFIED_SIZE:
        mine: Any = make(rank, size)
        _check(mine, collective, rank, size)
        schedules.validate(mine)
        return Plan("", mine)
    everyone: list[Any] = [make(each, size) for each in range(size)]
    for each, schedule in enumerate(everyone):
        _check(schedule, collective, each, size)
    schedules.verify(everyone)
    return Plan("", everyone[rank])


def _check(schedule: Any, collective: str, rank: int, size: int) -> None:
    if not isinstance(schedule, Schedule):
        raise UsageTypeError(
            "a plan made by a function",
            f"it made {type_of(schedule)}",
            "Return a gradred.schedules.Schedule",
        )
    if schedule.leaves:
        found = "it is one for leaves"
        raise UsageError(f"plan={schedule!r}", found, "Pass leaves= instead of plan=")
    if (schedule.collective, schedule.rank, schedule.size) != (collective, rank, size):
        wanted = f"a schedule for {collective} by rank {rank} of {size}"
        raise UsageError(f"plan={schedule!r}", f"this call needs {wanted}", "Pass such a plan")
