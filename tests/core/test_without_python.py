"""The core under an MPI, without Python: `csrc/tests/ranks`, a program that CMake builds.

CORE_PROGRAM names the program. Otherwise the test uses the newest one in `build`:

    cmake -S csrc -B build/core -G Ninja -DGRADRED_TESTS=ON && cmake --build build/core
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
from bounds import within
from hosts import faked

from gradred import launch

pytestmark = pytest.mark.timeout(320)

ROOT = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def program() -> str:
    named = os.environ.get("CORE_PROGRAM")
    built = [pathlib.Path(named)] if named else [*ROOT.glob("build/**/ranks/core_ranks")]
    assert built, "there is no core_ranks in build: the top of this file says how to make it"
    return str(max(built, key=lambda file: file.stat().st_mtime))


def run(start: Sequence[str], case: str, **knobs: str) -> subprocess.CompletedProcess[str]:
    """The program's output, by rank where the launcher labels it."""
    mpi = launch.find_mpi()
    environment = launch.job_environment(mpi)
    environment |= {f"GRADRED_{name.upper()}": value for name, value in knobs.items()}
    # Leaks are not checked: the MPI never frees some memory, and ranks that lose others end at
    # once.
    environment["ASAN_OPTIONS"] = "detect_leaks=0"
    command = [*start, program(), str(mpi.library), case]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def mpiexec(ranks: int) -> list[str]:
    return launch.launcher_command(launch.find_mpi(), ranks)


def gradred_run(ranks: int) -> list[str]:
    """A launcher whose ranks may outlive others; mpiexec alone ends them before they can report."""
    return [sys.executable, "-m", "gradred", "run", "-np", str(ranks), "--timeout", "60"]


def test_the_program_has_no_python() -> None:
    needed = subprocess.run(["ldd", program()], capture_output=True, text=True, check=True).stdout
    assert "libc.so" in needed
    assert not re.search("python|mpi", needed.replace(program(), ""), re.IGNORECASE)


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_kind_of_call_in_every_way_is_exact(ranks: int) -> None:
    done = run(mpiexec(ranks), "calls")
    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if line)
    assert said == [f"rank {rank} of {ranks}: 240 checks passed" for rank in range(ranks)]
    assert done.stderr == ""


@pytest.mark.one_mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_of_all_lengths_come_in_any_order(ranks: int) -> None:
    done = run(mpiexec(ranks), "messages")
    assert done.returncode == 0, done.stderr
    checks = 20 * 12 * (ranks - 1) + 4
    said = sorted(line for line in done.stdout.splitlines() if line)
    assert said == [f"rank {rank} of {ranks}: {checks} checks passed" for rank in range(ranks)]


@pytest.mark.one_mpi
@pytest.mark.parametrize("ranks", [1, 3])
def test_calls_on_memory_of_devices_are_exact(ranks: int) -> None:
    done = run(mpiexec(ranks), "devices")
    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if line)
    assert said == [f"rank {rank} of {ranks}: 136 checks passed" for rank in range(ranks)]


@pytest.mark.one_mpi
@pytest.mark.parametrize(("ranks", "shm"), [(1, "1"), (3, "1"), (2, "0")])
def test_named_operations_on_memory_of_devices_are_exact(ranks: int, shm: str) -> None:
    done = run(mpiexec(ranks), "named", shm=shm)
    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if line)
    assert said == [f"rank {rank} of {ranks}: 297 checks passed" for rank in range(ranks)]


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    "hosts", ["", pytest.param("0,0,1", marks=pytest.mark.skipif(os.geteuid() != 0, reason="root"))]
)
def test_call_made_before_allocates_nothing_and_takes_one_lock(
    hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(faked.VARIABLE, hosts)
    start = [*mpiexec(3 if hosts else 2), sys.executable, faked.__file__]
    done = run(start, "steady", shm="1" if hosts else "0", tune="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" calls take more") == 27 * (3 if hosts else 2)


def test_survivors_of_a_killed_rank_get_peer_lost_in_time() -> None:
    done = run(gradred_run(3), "lost")
    reports = re.findall(r"rank (\d): PeerLost after ([\d.]+) s: (.*)", done.stdout)
    assert sorted(rank for rank, _, _ in reports) == ["0", "2"], done.stdout + done.stderr
    for _, seconds, text in reports:
        assert float(seconds) < within(2.5)
        assert re.search(r"rank 1 .*has ended", text)
    assert done.returncode == 128 + 9, done.stderr  # the killed rank's status


def test_peers_of_a_rank_that_ends_by_an_error_get_its_reason() -> None:
    done = run(gradred_run(2), "leaves")
    assert "rank 0: PeerLost after " in done.stdout, done.stderr
    assert "has left the program: it has found no file" in done.stdout
    assert done.returncode == 1


def test_late_rank_is_reported_and_given_up_on_all_ranks() -> None:
    done = run(gradred_run(2), "late", warn_after="300ms", timeout="1s")
    reports = re.findall(r"rank (\d): TimeoutError after ([\d.]+) s: (.*)", done.stdout)
    assert sorted(rank for rank, _, _ in reports) == ["0", "1"], done.stdout + done.stderr
    seconds = {rank: float(after) for rank, after, _ in reports}
    assert 0.9 < seconds["0"] < within(1.9)
    assert seconds["1"] < within(0.5)
    reported = r"gradred: rank 0 .*has waited 0\.\d s in operation \d+ .*missing: rank 1"
    assert re.search(reported, done.stderr), done.stderr


KINDS = ["bcast", "allgather", "reduce_scatter_block"]


@pytest.mark.parametrize("kind", KINDS)
def test_rank_killed_within_a_call_of_the_mpis_is_peer_lost_in_time(kind: str) -> None:
    done = run(gradred_run(2), f"lost:{kind}")
    reports = re.findall(r"rank (\d): PeerLost after ([\d.]+) s: (.*)", done.stdout)
    assert [rank for rank, _, _ in reports] == ["0"], done.stdout + done.stderr
    assert float(reports[0][1]) < within(2.5)
    assert re.search(r"rank 1 .*has ended", reports[0][2]), reports
    assert done.returncode == 128 + 9, done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_time_limit_holds_within_a_call_of_the_mpis(kind: str) -> None:
    done = run(gradred_run(2), f"late:{kind}", warn_after="300ms", timeout="1s")
    reports = re.findall(r"rank (\d): TimeoutError after ([\d.]+) s: ", done.stdout)
    assert [rank for rank, _ in reports] == ["0"], done.stdout + done.stderr
    assert 0.9 < float(reports[0][1]) < within(1.9)
    assert re.search(r"gradred: rank 0 .*has waited 0\.\d s in .*" + kind, done.stderr), done.stderr


def test_forked_child_is_refused_and_its_rank_goes_on() -> None:
    done = run(mpiexec(2), "forks")
    assert done.returncode == 0, done.stderr
    refused = "this process is a child that a rank has forked: only ranks communicate"
    assert done.stdout.count(refused) == 2


def test_knobs_of_the_environment_hold_and_a_wrong_one_is_refused(tmp_path: pathlib.Path) -> None:
    done = run(mpiexec(2), "calls", slice="2")
    assert done.returncode != 0
    nearest = "The nearest one is GRADRED_SLICES."
    assert f"GRADRED_SLICE: there is no such setting. {nearest}" in done.stderr


def test_trace_is_written_at_the_end(tmp_path: pathlib.Path) -> None:
    done = run(mpiexec(2), "forks", trace=str(tmp_path / "made" / "trace.json"))
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        events = json.loads((tmp_path / "made" / f"trace.{rank}.json").read_text())["traceEvents"]
        names = [event["name"] for event in events if event["ph"] == "X"]
        assert names == ["allreduce of 1000 float32 with sum"] * 2


def test_profile_is_printed_and_written_at_the_end(tmp_path: pathlib.Path) -> None:
    done = run(mpiexec(2), "forks", profile=str(tmp_path / "made" / "p.json"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gradred profile of rank 0 of 2, ") == 1
    for rank in (0, 1):
        record = json.loads((tmp_path / "made" / f"p.{rank}.json").read_text())
        assert (record["schema"], record["rank"]) == ("gradred-profile/2", rank)
        assert [(row["kind"], row["calls"]) for row in record["rows"]] == [("allreduce", 2)]
