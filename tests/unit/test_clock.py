"""The clock that limits waits: a step by a test takes effect for every reader."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import core_testing
import pytest
from stepped import VARIABLE, SteppedClock

import gradred
from gradred import _core
from gradred._util import clock as python_clock

HOUR = 3600
DIFFERENCE = """
import time
from gradred import _core
from gradred._util import clock
before = time.monotonic()
seen = clock.now()
hours = (_core.now_ns() - time.monotonic_ns()) * 1e-9 / 3600
print(before <= seen <= time.monotonic(), round(hours))
"""


def test_step_is_seen_by_python_and_by_both_cores(clock: SteppedClock) -> None:
    def all_clocks() -> list[float]:
        return [python_clock.now(), _core.now_ns() * 1e-9, core_testing.now_ns() * 1e-9]

    before = all_clocks()
    assert before == sorted(before), "it is one clock"
    clock.step(HOUR)
    assert all(now - then >= HOUR for now, then in zip(all_clocks(), before, strict=True))
    assert abs(_core.now_ns() - python_clock.now_ns()) < HOUR * 1e9


def test_without_a_file_it_is_the_kernels_clock() -> None:
    environment = {name: value for name, value in os.environ.items() if "CLOCK_FILE" not in name}
    done = subprocess.run(
        [sys.executable, "-c", DIFFERENCE], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["True", "0"], done.stderr


def test_process_that_starts_later_goes_by_the_same_clock(clock: SteppedClock) -> None:
    clock.step(HOUR)
    program = "from gradred._util import clock; print(clock.now())"
    begin = python_clock.now()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert begin < float(done.stdout) < python_clock.now(), done.stderr
    assert float(done.stdout) > time.monotonic() + HOUR


def test_nap_is_short_only_where_a_step_may_come(clock: SteppedClock) -> None:
    assert python_clock.nap(0.001) == 0.001
    assert python_clock.nap(60) < 0.1
    program = "from gradred._util import clock; print(clock.nap(60))"
    environment = {**os.environ, VARIABLE: ""}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["60"], done.stderr


@pytest.mark.parametrize(("size", "why"), [(None, "No such file"), (7, "too short")])
def test_file_that_holds_no_steps_is_refused(
    tmp_path: pathlib.Path, size: int | None, why: str
) -> None:
    path = tmp_path / "steps"
    if size is not None:
        path.write_bytes(bytes(size))
    with pytest.raises(gradred.UsageError, match=why):
        _core.take_clock_steps_from(str(path))
