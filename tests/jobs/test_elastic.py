"""Elastic jobs whose ranks and launcher are really killed."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch")

from lean import LEAN

from gradred import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(__file__).with_name("elastic_training.py")

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


@dataclass
class Seen:
    status: int
    stderr: str
    report: dict[str, Any]


def command(*options: str, ends: tuple[str, ...] = ()) -> list[str]:
    program = [sys.executable, str(PROGRAM), *ends]
    return [sys.executable, "-m", "gradred", "run", "--horovod", *options, *program]


def environment(folder: pathlib.Path, **variables: str) -> dict[str, str]:
    own = {"MARK": str(folder / "ended"), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **LEAN, **own, **variables}


def job(folder: pathlib.Path, *options: str, ends: tuple[str, ...] = (), **given: str) -> Seen:
    done = subprocess.run(
        command(*options, ends=ends),
        env=environment(folder, **given),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return Seen(done.returncode, done.stderr, json.loads(lines[-1]) if lines else {})


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The loss of a run in which no rank ends."""
    seen = job(tmp_path_factory.mktemp("unbroken"), "-np", "2", PAUSE="0")
    assert seen.status == 0, seen
    return float(seen.report["loss"])


def test_survivors_go_on_where_the_job_is_not_elastic(
    tmp_path: pathlib.Path, unbroken: float
) -> None:
    seen = job(tmp_path, "-np", "3", ends=("0:7",))
    assert seen.status == 0, seen
    assert seen.report["ranks"] == 2
    first, again = seen.report["starts"]  # of the rank that was rank 1
    assert (first, 6 <= again <= 8) == (0, True), seen  # some ranks may have finished step 7
    assert seen.report["loss"] == pytest.approx(unbroken, rel=1e-9)
    assert "the others went on without it" in seen.stderr


@pytest.mark.parametrize("least", [pytest.param(1, marks=pytest.mark.full), 3])
def test_lost_ranks_are_replaced(tmp_path: pathlib.Path, unbroken: float, least: int) -> None:
    """With 1, a restart at the next commit replaces them; with 3, the two survivors are too few."""
    seen = job(tmp_path, "-np", "3", "--min-np", str(least), ends=("1:7",))
    assert seen.status == 0, seen
    assert seen.report["ranks"] == 3
    assert seen.report["starts"][0] > 0, seen
    assert seen.report["loss"] == pytest.approx(unbroken, rel=1e-9)
    assert seen.stderr.count("starting again with 3 ranks") == 1, seen


def test_a_host_that_failed_twice_gets_no_ranks(tmp_path: pathlib.Path, unbroken: float) -> None:
    """The ranks that run there continue."""
    seen = job(tmp_path, "-np", "3", "--min-np", "2", ends=("1:7", "2:30:raise"), PAUSE="0.04")
    assert seen.status == 0, seen
    assert seen.report["ranks"] == 2
    assert seen.report["loss"] == pytest.approx(unbroken, rel=1e-9)
    assert seen.stderr.count("starting again") == 1, seen


def test_a_program_that_always_fails_ends_after_two_starts() -> None:
    program = [sys.executable, "-c", "raise SystemExit(7)"]
    done = subprocess.run(
        [sys.executable, "-m", "gradred", "run", "-np", "2", "--min-np", "1", *program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 7, done
    assert done.stderr.count("starting again") == 1, done.stderr
    assert "left out after 2 failures: localhost" in done.stderr


def test_reset_limit(tmp_path: pathlib.Path) -> None:
    limits = ("--min-np", "2", "--reset-limit", "1")
    seen = job(tmp_path, "-np", "2", *limits, ends=("0:7", "1:30"), PAUSE="0.04")
    assert seen.status == 128 + signal.SIGKILL, seen
    assert "--reset-limit" in seen.stderr


def test_hosts_that_a_script_finds_get_ranks(tmp_path: pathlib.Path) -> None:
    listed = tmp_path / "hosts"
    listed.write_text("localhost:2\n")
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\nexec cat {listed}\n")
    script.chmod(0o755)
    options = ("-np", "2", "--host-discovery-script", str(script), "--elastic-dir")
    states = tmp_path / "states"
    process = subprocess.Popen(
        command(*options, str(states)),
        env=environment(tmp_path, PAUSE="0.05", STEPS="150"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: states.exists() and any(states.iterdir()))
    listed.write_text("localhost:3\n")
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 0, stderr
    assert json.loads(stdout.splitlines()[-1])["ranks"] == 3, (stdout, stderr)
    assert "starting again with 3 ranks" in stderr
    assert not list(states.iterdir())  # removed after success


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_launcher_is_started_again_by_hand(
    tmp_path: pathlib.Path, unbroken: float
) -> None:
    states = tmp_path / "states"
    options = ("-np", "2", "--elastic-dir", str(states))
    process = subprocess.Popen(
        command(*options),
        env=environment(tmp_path, PAUSE="0.03"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: states.exists() and len(list(states.glob("state-*.pt"))) > 1)
    process.kill()
    process.wait()
    assert (states.stat().st_mode & 0o777, next(states.glob("*.pt")).stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )
    seen = job(tmp_path, *options)
    assert seen.status == 0, seen
    assert seen.report["starts"][0] > 0
    assert seen.report["loss"] == pytest.approx(unbroken, rel=1e-9)


@pytest.mark.timeout(900)
def test_runs_killed_at_random_moments_end_with_the_loss_of_an_unbroken_run(
    tmp_path: pathlib.Path, unbroken: float, full: bool
) -> None:
    for seed in range(20 if full else 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        least = str(1 + 2 * (seed % 2))
        ends = (f"{seed % 3}:r:{seed}",)
        seen = job(folder, "-np", "3", "--min-np", least, ends=ends)
        assert seen.status == 0, (seed, seen)
        assert seen.report["loss"] == pytest.approx(unbroken, rel=1e-9), (seed, seen)


def test_the_example_goes_on_with_one_rank_and_then_with_two() -> None:
    pytest.importorskip("sklearn")
    example = ROOT / "examples" / "horovod_elastic.py"
    options = ["--horovod", "-np", "2", "--min-np", "1"]
    words = [sys.executable, "-m", "gradred", "run", *options, sys.executable, str(example)]
    done = subprocess.run(
        [*words, "--kill", "1"],
        env=os.environ | LEAN,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "now 1 ranks" in done.stdout
    assert "rank 0 of 1: epoch 0" in done.stdout
    right = re.search(r"2 ranks at the end: ([\d.]+) %", done.stdout)
    assert right is not None, done.stdout
    assert float(right[1]) > 80


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-np", "2", "--min-np", "3", "--max-np", "2"], "more than --max-np 2"),
        (["-np", "2", "--min-np", "3"], "-np 2 is less than --min-np 3"),
        (["-np", "2", "--slots-per-host", "2"], "there is no --host-discovery-script"),
        (["-np", "2", "--host-discovery-script", "/nowhere/script"], "cannot be run"),
        (["-np", "2", "--host-discovery-script", "/bin/false"], "ended with status 1"),
        (["-H", "localhost:2", "--host-discovery-script", "x"], "hosts are given as well"),
        (["-np", "2", "--elastic-dir", "/proc/nothing"], "cannot be made"),
        (["-np", "2", "--min-np", "1", "-H", "elsewhere:2"], "Add --elastic-dir"),
    ],
)
def test_what_cannot_be_elastic_is_refused(options: list[str], expected: str) -> None:
    folder = [] if "--min-np" in options or "--elastic-dir" in options else ["--elastic-dir", "."]
    words = [sys.executable, "-m", "gradred", "run", *options, *folder, "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2, done
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1, done
