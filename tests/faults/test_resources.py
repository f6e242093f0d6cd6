"""A rank without descriptors or memory, and hosts without shared memory: no hang, no crash.

Jobs of four ranks under `gradred run`; rank 1 lacks the resource.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil
import subprocess

import bounds
import pytest
from faults import seeing
from faults.seeing import RANKS, Seen, record

from gradred import launch

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

PROGRAM = pathlib.Path(__file__).with_name("resources.py")
SOON = 5.0  # seconds within which every rank knows of the error
MESSAGES = {"GRADRED_SHM": "0"}


def job(lack: str, call: str, **variables: str) -> Seen:
    return seeing.job(PROGRAM, lack, call, **{"GRADRED_TIMEOUT": "20"} | variables)


def assert_all_right(seen: Seen) -> None:
    assert seen.reports.keys() == set(range(RANKS)), seen
    for report in seen.reports.values():
        assert report["error"] is None, seen
        assert report["right"], seen
        assert report["again"] is True, seen
        assert report["seconds"] < bounds.within(SOON), seen
    assert seen.status == 0, seen


def assert_all_hear(seen: Seen, own: set[str], others: set[str]) -> None:
    """Rank 1 gets its own error, and the others one that follows from it, all soon."""
    assert seen.reports.keys() == set(range(RANKS)), seen
    for rank, report in seen.reports.items():
        assert report["error"] in (own if rank == 1 else others), seen
        assert report["seconds"] < bounds.within(SOON), seen
    assert seen.status == 3, seen


# The cases of the small sweep; each costs some seconds.
OFTEN = [
    ("descriptors of one rank", "first, small", "shared memory"),
    ("descriptors of one rank", "first, large", "messages"),
    ("descriptors of all ranks", "first, small", "messages"),
]


@pytest.mark.parametrize(
    ("lack", "call", "path"),
    [
        pytest.param(*case, marks=() if case in OFTEN else pytest.mark.full)
        for case in itertools.product(
            ("descriptors of one rank", "descriptors of all ranks"),
            ("small", "large", "first, small", "first, large"),
            ("shared memory", "messages"),
        )
    ],
)
def test_no_free_descriptors_end_in_results_or_errors_on_every_rank(
    lack: str, call: str, path: str
) -> None:
    seen = job(lack, call, **(MESSAGES if path == "messages" else {}))
    errors = {report["error"] for report in seen.reports.values()}
    record("no free " + lack, call, path, seen, part="resources", saw="right results")
    if errors == {None}:
        assert_all_right(seen)
    else:
        assert_all_hear(seen, {"TransportError"}, {"TransportError", "PeerLost"})


@pytest.mark.parametrize("path", ["shared memory", "messages"])
def test_peer_that_ends_is_missed_without_free_descriptors(path: str) -> None:
    seen = job("descriptors, then a peer", "small", **(MESSAGES if path == "messages" else {}))
    record("no free descriptors, then SIGKILL", "small", path, seen, part="resources")
    assert seen.reports.keys() == {0, 2, 3}, seen
    for report in seen.reports.values():
        assert report["error"] == "PeerLost", seen
        assert "rank 1" in report["text"], seen
        assert report["seconds"] < bounds.within(0.3 + 2), seen


def test_shared_memory_that_is_refused_to_one_rank_is_used_by_none() -> None:
    seen = job("memory of one", "first, small")
    record(
        "no memory", "first, small", "shared memory", seen, part="resources", saw="right results"
    )
    assert_all_right(seen)


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ("large", "messages"),
        pytest.param("large premul", "messages", marks=pytest.mark.full),
        ("large premul", "shared memory"),
    ],
)
def test_scratch_memory_that_is_refused_is_an_error_on_every_rank(call: str, path: str) -> None:
    variables = {} if path == "shared memory" else MESSAGES | {"GRADRED_PLAN": "recursive_doubling"}
    seen = job("memory of one", call, **variables)
    record("no memory", call, path, seen, part="resources")
    assert_all_hear(seen, {"MemoryError"}, {"TransportError", "UsageError", "PeerLost"})


def test_result_that_gets_no_memory_is_refused_and_the_communicator_stays() -> None:
    seen = job("memory of one", "new result")
    record("no memory", "result", "shared memory", seen, part="resources")
    assert_all_hear(seen, {"MemoryError"}, {"UsageError"})
    assert all(report["again"] is True for report in seen.reports.values()), seen


# ---- /dev/shm as the MPI finds it at its start -------------------------------------------------

# $0: the size of /dev/shm to mount, or nothing. The other arguments: the job.
ELSEWHERE = """
set -e
if [ "$0" = none ]; then
  new=$(mktemp -d)
  mount -t tmpfs tmpfs "$new"
  for name in null zero full random urandom tty; do
    : > "$new/$name"
    mount --bind "/dev/$name" "$new/$name"
  done
  ln -s /proc/self/fd "$new/fd"
  mount --move "$new" /dev
  rmdir "$new"
else
  mount -t tmpfs -o "size=$0" tmpfs /dev/shm
fi
exec "$@"
"""


def why_no_mounts() -> str | None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "a /dev/shm of its own takes root and unshare (util-linux)"
    probe = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"]
    answer = subprocess.run(probe, capture_output=True, text=True)
    return f"nothing can be mounted here ({answer.stderr.strip()})" if answer.returncode else None


def inside(size: str) -> list[str]:
    """A command prefix that gives the job a /dev/shm of this size, or none."""
    return ["unshare", "-m", "sh", "-c", ELSEWHERE, size]


WITHOUT_MOUNTS = why_no_mounts()


@pytest.mark.skipif(bool(WITHOUT_MOUNTS), reason=str(WITHOUT_MOUNTS))
def test_full_shared_memory_changes_nothing_for_ranks_that_have_started() -> None:
    seen = seeing.job(PROGRAM, "/dev/shm", "first, small", inside=inside("64m"))
    record(
        "/dev/shm full",
        "first, small",
        "shared memory",
        seen,
        part="resources",
        saw="right results",
    )
    assert_all_right(seen)


@pytest.mark.skipif(bool(WITHOUT_MOUNTS), reason=str(WITHOUT_MOUNTS))
@pytest.mark.parametrize("size", ["1m", "4k", "none"])
def test_little_shared_memory_at_the_start_is_served_or_named(size: str) -> None:
    seen = seeing.job(PROGRAM, "nothing", "first, small", inside=inside(size), GRADRED_TIMEOUT="20")
    record(
        {"none": "/dev/shm missing"}.get(size, f"/dev/shm of {size}"),
        "the MPI's start",
        "shared memory",
        seen,
        part="resources",
        saw="right results" if seen.status == 0 else "no rank starts",
    )
    if seen.status == 0:
        assert_all_right(seen)
    else:
        assert "/dev/shm" in seen.last_line, seen
        assert "--shm-size" in seen.last_line, seen


@pytest.mark.skipif(bool(WITHOUT_MOUNTS), reason=str(WITHOUT_MOUNTS))
def test_ranks_that_die_while_the_mpi_starts_leave_no_shared_memory() -> None:
    look = ["sh", "-c", '"$@"; status=$?; ls /dev/shm >&2; exit $status', "sh"]
    seen = seeing.job(PROGRAM, "nothing", "first, small", inside=[*inside("1m"), *look])
    left = [line for line in seen.stderr.splitlines() if line.startswith(("mpich_", "sm_seg"))]
    assert not left, seen
