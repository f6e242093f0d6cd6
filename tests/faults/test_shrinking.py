"""Jobs under `gradred run` whose ranks are killed, and that continue without them."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import bounds
import pytest
from faults import seeing
from faults.seeing import GRACE, RANKS, Seen

from gradred import launch

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

PROGRAM = pathlib.Path(__file__).with_name("elastic.py")


def job(scenario: str, argument: object = "", **variables: str) -> Seen:
    """Run a job whose ranks have half a minute, unless `variables` say otherwise."""
    variables = {"GRADRED_TIMEOUT": "30"} | variables
    return seeing.job(PROGRAM, scenario, str(argument), **variables)


def record(fault: str, seen: Seen, *, path: str = "shared memory", saw: str = "") -> None:
    seeing.record(fault, "shrink()", path, seen, part="shrinking", saw=saw)


@pytest.mark.parametrize("victim", [0, 1])
def test_survivors_of_a_kill_go_on_and_the_job_succeeds(victim: int) -> None:
    """The survivors also outlive the grace period of `gradred run` for jobs that do not shrink."""
    seen = job("once", victim)
    record(f"SIGKILL of rank {victim}", seen, saw="3 ranks go on")
    members = [rank for rank in range(RANKS) if rank != victim]
    assert sorted(seen.reports) == members, seen
    assert all(report["members"] == members for report in seen.reports.values())
    assert max(report["seconds"] for report in seen.reports.values()) < bounds.within(2), seen
    assert seen.status == 0, seen
    assert f"rank {victim} on" in seen.stderr
    assert "was killed by SIGKILL; the others went on without it" in seen.stderr


@pytest.mark.parametrize(("how", "status"), [("exit", 7), ("raise", 1)])
def test_a_rank_that_leaves_the_program_is_gone_on_without(how: str, status: int) -> None:
    seen = job("exits", how)
    ends = {"exit": "sys.exit(7)", "raise": "an exception"}
    record(f"{ends[how]} on rank 1", seen, saw="3 ranks go on")
    assert sorted(seen.reports) == [0, 2, 3], seen
    assert seen.status == 0, seen
    assert f"exited with status {status}; the others went on without it" in seen.stderr


def test_two_deaths_shrink_four_ranks_to_two() -> None:
    seen = job("twice")
    record("SIGKILL of rank 1, later of rank 3", seen, saw="2 ranks go on")
    assert sorted(seen.reports) == [0, 2], seen
    assert seen.status == 0, seen
    assert seen.stderr.count("went on without it") == 2


def test_a_rank_that_dies_during_shrink_leaves_the_others_able_to_shrink(full: bool) -> None:
    for seed in range(10 if full else 2):
        seen = job("meanwhile", seed)
        record("SIGKILL of rank 1, and of rank 2 meanwhile", seen, saw="2 ranks go on")
        assert sorted(seen.reports) == [0, 3], (seed, seen)
        assert seen.status == 0, (seed, seen)


def test_a_rank_that_never_shrinks_is_named_after_the_timeout() -> None:
    seen = job("never", GRADRED_TIMEOUT="1")
    record("rank 2 never shrinks, GRADRED_TIMEOUT of 1 s", seen)
    assert sorted(seen.reports) == [0, 3], seen
    for report in seen.reports.values():
        assert report["error"] == "TimeoutError", seen
        assert "missing: rank 2 (process" in report["text"]
        assert report["seconds"] < bounds.within(3), seen
    assert seen.status == 128 + 9, "nobody has gone on: the first failure counts"


def test_one_rank_that_shrinks_does_not_keep_alive_those_that_wait_for_the_dead() -> None:
    seen = job("half")
    fault = "one rank shrinks, two wait for a failed one in the MPI"
    record(fault, seen, saw="ended after the grace")
    assert sorted(seen.reports) == [0], seen
    assert seen.status == 128 + 9, seen
    assert GRACE <= seen.seconds < bounds.within(GRACE + 8), seen
    assert "went on without it" not in seen.stderr


def test_a_spawned_rank_0_that_has_left_is_not_taken_for_the_jobs_rank_0() -> None:
    seen = seeing.job(PROGRAM.with_name("spawning.py"), ranks=1)
    if "mpiexec ended the job" in seen.stderr:
        pytest.skip("mpiexec was faster: it ends all when a spawned rank ends")
    assert seen.status == 7, seen
    assert "went on without it" not in seen.stderr


def test_without_shared_memory_the_error_says_restart() -> None:
    seen = job("without_memory", GRADRED_SHM="0")
    record("SIGKILL of rank 1", seen, path="messages")
    assert sorted(seen.reports) == [0, 2, 3], seen
    for report in seen.reports.values():
        assert report["error"] == "UsageError", seen
        assert "GRADRED_SHM is off" in report["text"]
        assert "Restart the job" in report["text"]
    assert seen.status == 128 + 9, seen


def test_a_failure_after_shrinking_is_the_jobs_status() -> None:
    seen = job("fails_later")
    record("sys.exit(7) on rank 3 after shrinking", seen)
    assert {report["error"] for report in seen.reports.values()} == {"PeerLost"}, seen
    for report in seen.reports.values():
        assert "rank 2 (COMM_WORLD rank 3, process " in report["text"], seen
        assert "has left the program" in report["text"], "not only freed its communicator"
    assert seen.status == 7, seen
    last = [line for line in seen.stderr.splitlines() if line.startswith("gradred run:")]
    assert "rank 1" in last[0]
    assert "went on without it" in last[0]
    assert last[-1].endswith("exited with status 7")


def test_the_example_finds_the_same_coefficients_without_a_rank() -> None:
    program = PROGRAM.parents[2] / "examples" / "elastic.py"
    command = [sys.executable, "-m", "gradred", "run", "-np", "3", sys.executable, str(program)]
    printed = []
    for words in ([], ["--kill", "0", "7"]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done
        printed.append(done.stdout.splitlines()[-1].split(", "))
    assert printed[0][0] == "3 ranks at the end"
    assert printed[1] == ["2 ranks at the end", printed[0][1]]
