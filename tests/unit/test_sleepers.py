"""The protocols by which threads sleep and are woken, in all interleavings of their steps.

docs/design/engine.md lists where threads sleep. The protocols that no lock protects are small
programs here, on a machine whose processors have store buffers: a store reaches the memory at any
later moment, after earlier stores. A protocol is right if no thread sleeps on once the awaited
value is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pytest

Step = tuple[object, ...]


@dataclasses.dataclass(frozen=True)
class Thread:
    """The state of a thread: its next step, registers, buffered stores, and whether it sleeps."""

    at: int = 0
    registers: tuple[tuple[str, int], ...] = ()
    stores: tuple[tuple[str, int], ...] = ()
    sleeps_on: str = ""

    def having(self, name: str, value: int) -> Thread:
        """The thread at its next step, with this value in a register."""
        registers = dict(self.registers) | {name: value}
        return dataclasses.replace(self, at=self.at + 1, registers=tuple(sorted(registers.items())))

    def further(self) -> Thread:
        """The thread at its next step."""
        return dataclasses.replace(self, at=self.at + 1)


Memory = tuple[tuple[str, int], ...]
State = tuple[Memory, tuple[Thread, ...]]


def _with(memory: Memory, name: str, value: int) -> Memory:
    return tuple(sorted((dict(memory) | {name: value}).items()))


def _drained(memory: Memory, thread: Thread) -> tuple[Memory, Thread]:
    for name, value in thread.stores:
        memory = _with(memory, name, value)
    return memory, dataclasses.replace(thread, stores=())


def _after(state: State, index: int, step: Step) -> State | None:
    """The state after a step of one thread; None if the step is not possible now."""
    memory, threads = state
    thread, values = threads[index], dict(memory)
    others = list(threads)
    kind, name = step[0], str(step[1]) if len(step) > 1 else ""
    if kind == "store":
        stores = (*thread.stores, (name, step[2]))
        thread = dataclasses.replace(thread.further(), stores=stores)  # type: ignore[arg-type]
    elif kind == "load":
        own = dict(thread.stores)
        thread = thread.having(str(step[2]), own.get(name, values.get(name, 0)))
    elif kind == "add":  # a read-modify-write: all of its own stores come before it
        if thread.stores:
            return None
        memory = _with(memory, name, values.get(name, 0) + int(str(step[2])))
        thread = thread.having(str(step[3]), values.get(name, 0))
    elif kind == "barrier":  # of all processors, as membarrier() makes it
        for i, other in enumerate(others):
            memory, others[i] = _drained(memory, other)
        thread = others[index].further()
    elif kind in ("end if 0", "end unless 0"):
        ends = (dict(thread.registers).get(name, 0) == 0) == (kind == "end if 0")
        thread = dataclasses.replace(thread, at=10**6) if ends else thread.further()
    elif kind == "sleep":  # unless the value has changed, as the kernel sees it
        if thread.stores:
            return None
        same = values.get(name, 0) == dict(thread.registers).get(str(step[2]), 0)
        thread = dataclasses.replace(thread.further(), sleeps_on=name if same else "")
    elif kind == "wake":
        others = [
            dataclasses.replace(one, sleeps_on="") if one.sleeps_on == name else one
            for one in others
        ]
        thread = thread.further()
    else:
        raise AssertionError(step)
    others[index] = thread
    return memory, tuple(others)


def _next(state: State, programs: Sequence[Sequence[Step]]) -> Iterator[State]:
    memory, threads = state
    for index, (thread, program) in enumerate(zip(threads, programs, strict=True)):
        if thread.stores:  # the oldest store arrives
            (name, value), *rest = thread.stores
            later = list(threads)
            later[index] = dataclasses.replace(thread, stores=tuple(rest))
            yield _with(memory, name, value), tuple(later)
        if thread.sleeps_on or thread.at >= len(program):
            continue
        made = _after(state, index, program[thread.at])
        if made is not None:
            yield made


def sleeps_on(programs: Sequence[Sequence[Step]], goal: str) -> bool:
    """Whether some interleaving ends with a sleeper although `goal` is not 0."""
    start: State = ((), tuple(Thread() for _ in programs))
    seen, left = {start}, [start]
    while left:
        state = left.pop()
        following = list(_next(state, programs))
        memory, threads = state
        if not following and dict(memory).get(goal, 0) and any(one.sleeps_on for one in threads):
            return True
        for one in following:
            if one not in seen:
                seen.add(one)
                left.append(one)
    return False


# ---- words of ranks that share memory: csrc/base/bell.cc ---------------------------------------

WRITER: list[Step] = [
    ("store", "word", 1),
    ("load", "expected", "expected"),
    ("end if 0", "expected"),
    ("add", "sleepers", 0, "sleepers"),
    ("end if 0", "sleepers"),
    ("add", "rings", 1, ""),
    ("wake", "rings"),
]
SLEEPER: list[Step] = [
    ("add", "expected", 1, ""),
    ("barrier",),
    ("add", "sleepers", 1, ""),
    ("load", "rings", "rings"),
    ("load", "word", "word"),
    ("end unless 0", "word"),
    ("sleep", "rings", "rings"),
]
# Where sleepers are normal, no thread publishes that one is expected.
USUAL_WRITER = [step for step in WRITER if "expected" not in step]
USUAL_SLEEPER = [step for step in SLEEPER if "expected" not in step and step[0] != "barrier"]
# A counter to which several ranks add, like the board's news.
ADDER: list[Step] = [("add", "word", 1, ""), *USUAL_WRITER[1:]]

# ---- the progress thread and a thread that starts to wait: csrc/engine/engine.cc ---------------

# sleep_for() and take_over(). Both change one word and read the other's.
THREAD: list[Step] = [
    ("load", "wake", "wake"),
    ("add", "at bells", 1, ""),
    ("load", "waiting", "waiting"),
    ("end unless 0", "waiting"),
    ("sleep", "wake", "wake"),
]
WAITER: list[Step] = [
    ("add", "waiting", 1, ""),
    ("load", "at bells", "bells"),
    ("end if 0", "bells"),
    ("add", "wake", 1, ""),
    ("wake", "wake"),
]


def _without(program: Sequence[Step], *which: int) -> list[Step]:
    return [step for index, step in enumerate(program) if index not in which]


def _swapped(program: Sequence[Step], first: int, second: int) -> list[Step]:
    made = list(program)
    made[first], made[second] = made[second], made[first]
    return made


RIGHT = {
    "word": ([WRITER, SLEEPER], "word"),
    "word, two sleepers": ([WRITER, SLEEPER, SLEEPER], "word"),
    "word, sleepers are usual": ([USUAL_WRITER, USUAL_SLEEPER], "word"),
    "news of two ranks": ([ADDER, ADDER, USUAL_SLEEPER], "word"),
    "the engine's thread": ([THREAD, WAITER], "waiting"),
}
# The purpose of each step: without it, or in another order, a thread sleeps on.
WRONG = {
    "nobody says that a sleeper is expected": ([WRITER, _without(SLEEPER, 0)], "word"),
    "no barrier": ([WRITER, _without(SLEEPER, 1)], "word"),
    "the barrier comes first": ([WRITER, _swapped(SLEEPER, 0, 1)], "word"),
    "it does not count itself": ([WRITER, _without(SLEEPER, 2)], "word"),
    "it looks at the word before it counts itself": ([WRITER, _swapped(SLEEPER, 2, 4)], "word"),
    "it looks at the rings after the word": (
        [WRITER, [*SLEEPER[:3], SLEEPER[4], SLEEPER[5], SLEEPER[3], SLEEPER[6]]],
        "word",
    ),
    "it does not look again": ([WRITER, _without(SLEEPER, 4, 5)], "word"),
    "the writer looks before it stores": ([_swapped(WRITER, 0, 1), SLEEPER], "word"),
    "the writer wakes nobody": ([_without(WRITER, 6), SLEEPER], "word"),
    "usual, and the writer only reads": (
        [[WRITER[0], ("load", "sleepers", "sleepers"), *WRITER[4:]], USUAL_SLEEPER],
        "word",
    ),
    "the thread stores that it is at the bells": (
        [[THREAD[0], ("store", "at bells", 1), *THREAD[2:4], THREAD[4]], WAITER],
        "waiting",
    ),
    "the thread reads the wake word late": (
        [[*THREAD[1:4], THREAD[0], THREAD[4]], WAITER],
        "waiting",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_nobody_sleeps_on(name: str) -> None:
    programs, goal = RIGHT[name]
    assert not sleeps_on(programs, goal)


@pytest.mark.parametrize("name", WRONG)
def test_each_step_is_needed(name: str) -> None:
    programs, goal = WRONG[name]
    assert sleeps_on(programs, goal)
