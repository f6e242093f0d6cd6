"""Count the tests that a stage passed, skipped and tried again, for tools/stages.py.

The variable CI_TALLY names a file, to which each test runner appends a line of JSON. Without the
variable nothing is counted. tests/conftest.py does the same for a pytest without a tool. With
CI_TALLY_NAMES the reasons of skips also name their tests.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "CI_TALLY"
NAMES = "CI_TALLY_NAMES"


@dataclass
class Tally:
    """The sums of a stage; `skipped` counts tests by the reason that they gave.

    A reason with no tests is the reason of a stage that checked nothing.
    """

    passed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    """Tests that failed and were tried again, with the number of their failures."""


def add(passed: int, skipped: Mapping[str, int], again: Iterable[str] = ()) -> None:
    """Append to the file, if there is one; `again` are tests that passed in their second try."""
    if name := os.environ.get(VARIABLE):
        found = {"passed": passed, "skipped": dict(skipped), "again": dict.fromkeys(again, 1)}
        with open(name, "a") as file:
            print(json.dumps(found), file=file)


def skip(reason: str) -> bool:
    """Record that nothing can be checked on this machine, and why; returns True."""
    print(f"skipped: {reason}")
    add(0, {reason: 0})
    return True


def read(file: Path) -> Tally:
    """Return the sums of a file; zeros if it does not exist."""
    sums = Tally()
    for line in file.read_text().splitlines() if file.exists() else []:
        one = json.loads(line)
        sums.passed += one["passed"]
        sums.skipped.update(one["skipped"])
        sums.again.update(one.get("again", {}))
    return sums


def passed_again(cache: Path, run: Callable[[], bool]) -> bool:
    """Run the tests that pytest's cache lists as failed; count them, return whether they pass."""
    file = cache / "v" / "cache" / "lastfailed"
    failed = sorted(json.loads(file.read_text())) if file.exists() else []
    if not failed:
        return False
    print(f"\n-- a second try of {len(failed)} --", flush=True)
    well = run()
    add(0, {}, failed if well else ())
    return well
