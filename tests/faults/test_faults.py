"""What happens to the other ranks after a real fault of one rank, and how soon.

Jobs of four ranks under `gradred run`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

import bounds
import pytest
from faults import seeing
from faults.seeing import RANKS, TIMEOUT, Seen, record

from gradred import launch

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

PROGRAM = pathlib.Path(__file__).with_name("program.py")
TESTS = str(pathlib.Path(__file__).parents[1])
CALLS = [
    "small",
    "large",
    "non-blocking",
    "large non-blocking",
    "tested",
    "large tested",
    "persistent",
]


def job(*arguments: str, **variables: str) -> Seen:
    return seeing.job(PROGRAM, *arguments, **variables)


# The silent peers that the small sweep tries; each costs some seconds.
OFTEN = [
    ("stopped", "small"),
    ("never calls", "large non-blocking"),
    ("never calls", "tested"),
    ("stopped", "large tested"),
]


@pytest.fixture(params=["shared memory", "messages"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def some(*often: str) -> list[Any]:
    """All calls; the small sweep has only these."""
    return [pytest.param(call, marks=() if call in often else pytest.mark.full) for call in CALLS]


def knobs(path: str) -> dict[str, str]:
    return {} if path == "shared memory" else {"GRADRED_SHM": "0"}


def assert_all_others_raise(
    seen: Seen, error: str, within: float, later_within: float = 1.0
) -> None:
    others = set(range(RANKS)) - {1}
    assert seen.reports.keys() == others, seen
    for report in seen.reports.values():
        assert report["error"] == error, seen
        assert report["seconds"] < bounds.within(0.3 + within), seen
        assert report["later"] == error, "a failed communicator must stay so"
        assert report["later_seconds"] < bounds.within(later_within)
        assert report["text"].count("can no longer be used") <= 1, "once is enough"
    # A slow rank may first receive the notice of another rank that left because of rank 1.
    assert any("rank 1" in report["text"] for report in seen.reports.values()), seen


@pytest.mark.parametrize("call", some(*[one for one in CALLS if one != "large tested"]))
def test_killed_peer_raises_peer_lost_within_two_seconds(call: str, path: str) -> None:
    seen = job("killed", call, GRADRED_TIMEOUT="20", **knobs(path))
    record("SIGKILL", call, path, seen)
    assert_all_others_raise(seen, "PeerLost", within=2.0)
    for report in seen.reports.values():
        assert ("comm.shrink()" in report["text"]) == (path == "shared memory"), seen
        assert ("checkpoint" in report["text"]) == (path == "messages"), "where shrink() raises"
    assert seen.status == 128 + 9, seen
    assert "rank 1" in seen.stderr


@pytest.mark.parametrize(
    "call", ["small", pytest.param("non-blocking", marks=pytest.mark.full), "tested"]
)
def test_peer_killed_before_the_first_call_raises_peer_lost_within_two_seconds(
    call: str, path: str
) -> None:
    seen = job("killed early", call, GRADRED_TIMEOUT="20", **knobs(path))
    record("SIGKILL before the first call", call, path, seen)
    assert_all_others_raise(seen, "PeerLost", within=2.0)
    assert seen.status == 128 + 9, seen
    assert "was killed by SIGKILL" in seen.last_line, seen


@pytest.mark.parametrize(
    ("fault", "call"),
    [
        pytest.param(fault, call, marks=() if (fault, call) in OFTEN else pytest.mark.full)
        for fault in ("stopped", "never calls")
        for call in CALLS
    ],
)
def test_silent_peer_raises_timeout_error_on_every_rank(fault: str, call: str, path: str) -> None:
    seen = job(fault, call, **knobs(path))
    record({"stopped": "SIGSTOP"}.get(fault, fault), call, path, seen)
    # A persistent operation leaves its communicator as it is, whose next call has its own limit.
    later_within = 1 + TIMEOUT if call == "persistent" else 1
    assert_all_others_raise(seen, "TimeoutError", TIMEOUT + 2.0, later_within)
    assert all(report["seconds"] >= TIMEOUT for report in seen.reports.values()), seen
    assert seen.status != 0, seen


@pytest.mark.parametrize("call", some("small", "non-blocking"))
@pytest.mark.parametrize(
    ("fault", "statuses"),
    [("raises", {1}), ("exits", {7}), ("returns", {1, 3}), ("finalizes", {1, 3})],
)
def test_peer_that_leaves_raises_peer_lost_and_keeps_its_status(
    fault: str, statuses: set[int], call: str, path: str
) -> None:
    seen = job(fault, call, GRADRED_TIMEOUT="20", **knobs(path))
    names = {"raises": "an exception", "exits": "sys.exit(7)", "returns": "the program's end"}
    record(names.get(fault, "MPI.Finalize()"), call, path, seen)
    assert_all_others_raise(seen, "PeerLost", within=2.0)
    assert "left the program" in seen.reports[0]["text"] + seen.reports[2]["text"]
    if fault == "raises":
        assert "RuntimeError: on purpose" in seen.reports[0]["text"] + seen.reports[2]["text"]
        assert "RuntimeError: on purpose" in seen.stderr, "the rank's own traceback"
    assert seen.status in statuses, seen


@pytest.mark.parametrize("call", some("small", "large tested"))
def test_control_c_on_one_rank_raises_peer_lost_on_the_others(call: str, path: str) -> None:
    seen = job("interrupted", call, GRADRED_TIMEOUT="20", **knobs(path))
    record("Ctrl-C", call, path, seen)
    assert_all_others_raise(seen, "PeerLost", within=2.1)
    assert "KeyboardInterrupt" in seen.stderr, "the rank's own traceback"
    assert seen.status == 128 + 2, seen


@pytest.mark.parametrize("call", some("small", "large non-blocking"))
def test_error_of_the_mpi_on_one_rank_is_a_transport_error_on_all(call: str) -> None:
    seen = job("error below", call, GRADRED_TIMEOUT="20", **knobs("messages"))
    record("an error of the MPI", call, "messages", seen)
    assert seen.reports.keys() == set(range(RANKS)), seen
    for report in seen.reports.values():
        assert report["error"] == "TransportError", seen
        later = "no error" if call == "persistent" else "TransportError"
        assert report["later"] == later, seen
        assert "failed in the MPI underneath" in report["text"], seen
        assert "start the job again" in report["text"], "what to do"
        assert report["seconds"] < bounds.within(0.3 + 2.0)
    assert "rank 1" in seen.reports[0]["text"], seen
    assert seen.status != 0


def test_wait_is_reported_after_warn_after(path: str) -> None:
    seen = job("never calls", "small", GRADRED_WARN_AFTER="10", GRADRED_TIMEOUT="15", **knobs(path))
    reports = [line for line in seen.stderr.splitlines() if re.search("gradred: .*waited", line)]
    assert len(reports) == 1, "one report per host"
    assert "gradred: rank 0 has" in reports[0], "who says so, also in a pipe"
    assert "rank 1 (process" in reports[0], seen


def test_timeout_names_a_file_that_shows_where_each_rank_is(path: str) -> None:
    seen = job("never calls", "small", **knobs(path))
    text = seen.reports[0]["text"]
    file = pathlib.Path(text.rsplit("Where each rank is: ", 1)[1])
    shown = file.read_text()
    assert f"{RANKS} of {RANKS} ranks on this host" in shown
    assert "in meet_fault" in shown, "the stack of the rank that never came"
    last = "1" if path == "shared memory" else "0 over messages"
    last += " (allreduce of 1 float64 with sum, 8 bytes)"
    assert f"not waiting in gradred; last operation {last}" in shown


TWO_TIMEOUTS = """
import json
import numpy as np
import stepped
from mpi4py import MPI
import gradred

world = MPI.COMM_WORLD
first, second = gradred.Comm(world.Dup()), gradred.Comm(world.Dup())
first.Allreduce(MPI.IN_PLACE, np.zeros(4))
second.Allreduce(MPI.IN_PLACE, np.zeros(8))
texts = []

def wait_in_vain(comm, count):
    for _ in range(2):
        try:
            comm.Allreduce(MPI.IN_PLACE, np.zeros(count))
        except gradred.TimeoutError as error:
            texts.append(str(error))

def meet_the_first():
    wait_in_vain(first, 4)

def meet_the_second():
    wait_in_vain(second, 8)

if world.rank == 1:
    for _ in range(2):
        stepped.let_pass(2, ranks=2)
    stepped.await_end_of_others()
else:
    meet_the_first()
    meet_the_second()
    print(json.dumps({"rank": world.rank, "texts": texts}), flush=True)
"""


def test_second_timeout_adds_what_it_saw_to_the_file_of_the_first(
    path: str, tmp_path: pathlib.Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(TWO_TIMEOUTS)
    seen = seeing.job(program, ranks=3, GRADRED_TIMEOUT=str(TIMEOUT), **knobs(path))
    texts = seen.reports[0]["texts"] + seen.reports[2]["texts"]
    assert len(texts) == 8, seen
    files = {text.rsplit("Where each rank is: ", 1)[1] for text in texts}
    assert len(files) == 1
    shown = pathlib.Path(files.pop()).read_text()
    assert shown.count("3 of 3 ranks on this host") == 2, shown
    before, after = shown.split("\n\n\n")
    assert "in meet_the_first" in before
    assert "in meet_the_second" not in before
    assert "in meet_the_second" in after


def test_ps_shows_operation_and_stack_of_each_rank(path: str) -> None:
    last = 1 if path == "shared memory" else 0  # number of the first operation
    fields = ("operation", "call", "bytes", "missing")
    command = [sys.executable, "-m", "gradred", "run", "-np", str(RANKS), sys.executable]
    with subprocess.Popen(
        [*command, str(PROGRAM), "never calls", "small"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": TESTS, "GRADRED_TIMEOUT": "20", **knobs(path)},
    ) as running:
        try:
            shown = ps_once_all_miss(1, running.pid)
            assert [one["rank"] for one in shown] == list(range(RANKS))
            assert shown[1]["waits_s"] is None
            assert any("in meet_fault" in line for line in shown[1]["stack"])
            assert "allreduce of 2 float64 with sum" in shown[0]["waits_for"]
            assert "rank 1" in shown[0]["waits_for"]
            for one in (shown[0], shown[2], shown[3]):
                assert [one[field] for field in fields] == [last + 1, "allreduce", 16, [1]], one
            assert [shown[1][field] for field in fields] == [last, "allreduce", 8, []]
        finally:
            running.terminate()


def ps_once_all_miss(rank: int, launcher: int) -> list[dict[str, Any]]:
    """The ranks of a job, once all others report that they wait for `rank`.

    `rank` must also have shown where it is, which may take long on a busy machine. Returns after at
    most 15 s.
    """
    deadline = time.monotonic() + 15
    ps = [sys.executable, "-m", "gradred", "ps", "--json"]
    while True:
        text = subprocess.run(ps, capture_output=True, text=True, check=True).stdout
        shown = [one for one in json.loads(text)["ranks"] if is_below(one, launcher)]
        all_miss = [one["missing"] for one in shown].count([rank]) == RANKS - 1
        if all_miss and any("in meet_fault" in line for line in shown[rank]["stack"]):
            return shown
        if time.monotonic() > deadline:
            return shown
        time.sleep(0.2)


def is_below(rank: dict[str, Any], ancestor: int) -> bool:
    pid = rank["pid"]
    with contextlib.suppress(FileNotFoundError):  # the process has ended meanwhile
        while pid > 1 and pid != ancestor:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
            pid = int(stat[stat.rindex(")") + 1 :].split()[1])
    return bool(pid == ancestor)


def test_poisoned_rank_skips_mpi_finalize_and_keeps_its_status() -> None:
    """Rank 0 catches the error and returns, rank 2 exits with 3, rank 3 with a traceback."""
    seen = job("killed", "small")
    assert seen.seconds < bounds.within(15)
    assert "did not end within" not in seen.stderr, "a rank hung in MPI_Finalize"
    assert "PeerLost" in seen.stderr, "rank 3's traceback"
