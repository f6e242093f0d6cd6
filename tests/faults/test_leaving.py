"""Ranks that end while others still wait for them, or while they wait for others."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import bounds
import pytest
from faults import seeing

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
    ("case", "call", "status"),
    [
        ("before_the_first_call_on_a_duplicate", "first, on a duplicate", 7),
        ("after_non_blocking_calls_only", "non-blocking", 7),
        ("on_the_last_of_many_communicators", "on the last of 70 communicators", 7),
        ("by_an_exception_before_any_call", "first", 1),
        ("by_an_exception_beside_a_thread", "beside a thread that reduces", 1),
        ("by_an_exception_before_the_first_call_of_a_thread", "before a thread's first call", 1),
        ("by_an_exception_beside_a_thread_on_survivors", "beside a thread on survivors", 1),
        ("by_an_exception_before_a_thread_connects", "before a thread connects", 1),
        (
            "by_an_exception_beside_a_thread_with_a_persistent_call",
            "beside a thread with a persistent call",
            1,
        ),
        ("by_an_exception_beside_a_thread_that_sleeps", "beside a thread that sleeps", 1),
        ("by_an_exception_beside_an_executor", "beside an executor", 1),
        ("before_any_call", "first", 7),
        ("before_any_non_blocking_call", "first, non-blocking", 7),
        ("before_any_tested_call", "first, tested", 7),
        ("by_finalizing_before_any_call", "first", 7),
    ],
)
def test_rank_that_leaves_is_lost_to_whoever_waits_for_it(
    case: str, call: str, status: int
) -> None:
    seen = seeing.job(PROGRAM, case, ranks=2, GRADRED_TIMEOUT="20")
    assert seen.reports[0]["error"] == "PeerLost", seen
    assert "rank 1" in seen.reports[0]["text"], seen
    assert seen.reports[0]["seconds"] < bounds.within(4), seen
    assert seen.status == status, seen
    how = "MPI.Finalize()" if "finalizing" in case else f"sys.exit({status})"
    fault = "an exception" if "exception" in case else how
    seeing.record(f"{fault} of one of two ranks", call, "one host", seen)


@pytest.mark.parametrize(
    ("case", "ranks", "shown"),
    [
        ("while_a_message_is_on_its_way", 2, "received 4.1943e+06 after"),
        ("with_no_descriptor_when_they_met", 2, "got 2"),
        ("of_a_spawned_child", 1, "child gone, sum 2"),
    ],
)
def test_rank_that_ends_keeps_nobody_waiting(case: str, ranks: int, shown: str) -> None:
    done = job(case, ranks)
    assert shown in done.stdout, done
    assert done.returncode == 0, done


def test_job_ends_when_a_rank_waits_in_finalize_for_one_that_has_ended_without_it() -> None:
    case = "long_before_others_import_gradred"
    seen = seeing.job(PROGRAM, case, ranks=2, GRADRED_TIMEOUT="20")
    assert seen.reports[0]["error"] == "PeerLost", seen
    if launch.find_mpi().family != "Open MPI":  # Open MPI notices that it waits in vain
        assert "rank 1 on" in seen.last_line, seen
        assert "waited in MPI_Finalize for ranks that ended without it" in seen.last_line, seen
        assert seen.status == 1, seen
    assert seen.seconds < bounds.within(30), seen
    seeing.record(f"leaves {case.replace('_', ' ')}", "first", "one host", seen)


def test_rank_waits_for_no_finalize_after_the_others_gave_up() -> None:
    case = "after_the_others_gave_up"  # and went on: no rank ends with a failure
    seen = seeing.job(PROGRAM, case, ranks=2, GRADRED_TIMEOUT="1")
    assert seen.reports[0]["error"] == "TimeoutError", seen
    if launch.find_mpi().family != "Open MPI":  # Open MPI minds that it is not finalized
        assert (seen.status, seen.last_line) == (0, ""), seen
    assert seen.seconds < bounds.within(15), seen
    seeing.record(f"leaves {case.replace('_', ' ')}", "first", "one host", seen)
