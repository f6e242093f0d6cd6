"""Ranks that end by themselves where others still wait for them, or they for others."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from gradred import launch

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

PROGRAM = pathlib.Path(__file__).with_name("leaving.py")


def job(case: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradred", "run", "-np", str(ranks), "--timeout", "20"]
    command += ["--no-prefix", sys.executable, str(PROGRAM), case]
    return subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ("before_the_first_call_on_a_duplicate", 7),
        ("after_non_blocking_calls_only", 7),
        ("on_the_last_of_many_communicators", 7),
        ("by_an_exception_before_any_call", 1),
    ],
)
def test_rank_that_leaves_is_lost_to_whoever_waits_for_it(case: str, status: int) -> None:
    done = job(case)
    assert "PeerLost after" in done.stdout, done
    assert "rank 1" in done.stdout, done
    assert done.returncode == status, done


@pytest.mark.parametrize(
    ("case", "ranks", "shown"),
    [
        ("while_a_message_is_on_its_way", 2, "received 4.1943e+06 after 0."),
        ("with_no_descriptor_when_they_met", 2, "got 2"),
        ("of_a_spawned_child", 1, "child gone, sum 2"),
    ],
)
def test_rank_that_ends_keeps_nobody_waiting(case: str, ranks: int, shown: str) -> None:
    done = job(case, ranks)
    assert shown in done.stdout, done
    assert done.returncode == 0, done
