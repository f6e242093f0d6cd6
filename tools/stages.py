"""Run stages of checks, two or more at the same time, and report the result of each.

tools/ci.py and tools/nightly.py have the tables. A failed stage does not stop the others. A stage
that could check nothing on this machine is skipped, not passed.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import tally
from processes import Beside

BUILD = Path("build", "ci")
AT_ONCE = 2 * len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Stage:
    """A row of a table: `check` prints its findings and returns whether all tests passed."""

    name: str
    check: Callable[[], bool]
    beside: bool = False
    """Whether it runs at the same time as later stages, until one of them needs all cores.

    Such a stage leaves a core idle. At most AT_ONCE run at a time; with more, tests would fail
    because they wait for a core.
    """
    all_cores: bool = False
    tests: Callable[[], bool] | None = None
    """Runs only its tests, in the existing environments; None if it has none.

    tools/under_load.py repeats them.
    """


@dataclass(frozen=True)
class Verdict:
    """The result of a stage, with the tests that it skipped or repeated."""

    stage: Stage
    seconds: float
    core_seconds: float
    """The processor seconds that its processes used."""
    word: str
    """"passed", "FAILED" or "skipped": no failure, but nothing could be checked."""
    passed: int
    """The number of passed tests, if the stage counts them."""
    skipped: Counter[str]
    again: Counter[str]

    @classmethod
    def of(cls, stage: Stage, seconds: float, core_seconds: float, well: bool) -> Verdict:
        found = tally.read(tally_of(stage))
        only_skips = bool(found.skipped) and not found.passed
        word = ("skipped" if only_skips else "passed") if well else "FAILED"
        return cls(stage, seconds, core_seconds, word, found.passed, found.skipped, found.again)

    def __str__(self) -> str:
        reason = f": {', '.join(self.skipped)}" if self.word == "skipped" else ""
        times = f"{self.seconds:8.1f} s {self.core_seconds:8.1f} core-s"
        return f"{self.stage.name:28}{times}  {self.word}{reason}"


def tally_of(stage: Stage) -> Path:
    """Return the file in which the stage's test runner counts passed and skipped tests."""
    return BUILD / f"{stage.name}.tally"


def used_core_seconds() -> float:
    """Return the core seconds of ended processes, except those of concurrent stages."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime - Beside.ended_core_seconds


def check(stage: Stage) -> Verdict:
    """Run a stage in this process."""
    print(f"\n==== {stage.name} ====", flush=True)
    begin = time.monotonic()
    tally_of(stage).unlink(missing_ok=True)
    os.environ[tally.VARIABLE] = str(tally_of(stage).absolute())
    before = used_core_seconds()
    try:
        well = stage.check()
    except Exception:  # later stages run in any case
        traceback.print_exc(file=sys.stdout)
        well = False
    used = used_core_seconds() - before
    verdict = Verdict.of(stage, time.monotonic() - begin, used, well)
    print(verdict, flush=True)
    return verdict


def run_stages(
    stages: Iterable[Stage], program: str, ended: Callable[[Verdict], None] = lambda _: None
) -> list[Verdict]:
    """Run the stages; return their verdicts in the order of their ends, and pass each to `ended`.

    `program --stage NAME` runs the stage of that name alone, in a process of its own.
    """
    stages = list(stages)
    verdicts: list[Verdict] = []
    beside: list[tuple[Stage, Beside]] = []

    def note(verdict: Verdict) -> None:
        verdicts.append(verdict)
        ended(verdict)

    def join() -> None:
        while beside:
            stage, one = beside.pop(0)
            well = one.wait() == 0
            note(Verdict.of(stage, one.seconds, one.core_seconds, well))

    try:
        for stage in stages:
            while sum(one.running for _, one in beside) >= AT_ONCE:
                time.sleep(0.1)
            if stage.beside and len(stages) > 1:
                command = [sys.executable, program, "--stage", stage.name]
                beside.append((stage, Beside(command, BUILD / f"{stage.name}.log")))
                continue
            if stage.all_cores:
                join()
            note(check(stage))
        join()
    finally:  # if `ended` stops the run, no stage may continue after it
        for _, one in beside:
            one.wait()
    return verdicts


def report(verdicts: list[Verdict], seconds: float) -> int:
    """Print the table, the skipped tests and the closing line; returns the exit status."""
    print("\n" + "\n".join(map(str, verdicts)))
    reasons: dict[str, list[str]] = {}
    for one in verdicts:
        for reason, count in one.skipped.items():
            if count:
                reasons.setdefault(reason, []).append(f"{count} in {one.stage.name}")
    for reason, where in reasons.items():
        print(f"skipped: {reason} ({'; '.join(where)})")
    print(f"skipped tests: {sum(one.skipped.total() for one in verdicts)}")
    for one in verdicts:
        for name, failures in one.again.items():
            print(f"tried again: {name} failed {failures}x (in {one.stage.name})")
    words = Counter(one.word for one in verdicts)
    core_seconds = sum(one.core_seconds for one in verdicts)
    print(
        f"{words['passed']} stages passed, {words['FAILED']} failed, {words['skipped']} skipped, "
        f"{seconds:.0f} s, {core_seconds:.0f} core-s"
    )
    return 1 if words["FAILED"] or not words["passed"] + words["skipped"] else 0


def named(stages: Iterable[Stage], exact: str | None, part: str | None) -> list[Stage]:
    """Return the stage with the exact name, or all stages whose names contain `part`."""
    if exact is not None:
        return [one for one in stages if one.name == exact]
    found = [one for one in stages if (part or "") in one.name]
    return found or sys.exit(f"no stage has {part!r} in its name")
