"""Parts of an elastic job: states in files, discovered hosts, the byte that notifies ranks."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence

import pytest
from stepped import SteppedClock

from gradred import UsageError
from gradred.launch import discovery, elastic, failure_board, state_files
from gradred.launch.discovery import DiscoveryScript
from gradred.launch.hosts import Host


def write(folder: pathlib.Path, number: int) -> None:
    state_files.write(str(folder), number, lambda file: file.write(b"%d" % number))


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_two_states_stay(tmp_path: pathlib.Path) -> None:
    assert state_files.newest(str(tmp_path)) is None
    for number in (1, 2, 10, 9):
        write(tmp_path, number)
    assert names(tmp_path) == ["state-0000000009.pt", "state-0000000010.pt"]
    found = state_files.newest(str(tmp_path))
    assert found is not None
    assert (found[0], found[1].read_bytes()) == (10, b"10")
    assert found[1].stat().st_mode & 0o777 == 0o600


def test_a_state_that_cannot_be_written_leaves_those_before(tmp_path: pathlib.Path) -> None:
    write(tmp_path, 1)

    def fail(file: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        state_files.write(str(tmp_path), 2, fail)
    assert names(tmp_path) == ["state-0000000001.pt"]


def test_what_a_killed_rank_left_is_no_state(tmp_path: pathlib.Path) -> None:
    (tmp_path / "state-0000000007.pt.123.part").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    assert state_files.newest(str(tmp_path)) is None
    write(tmp_path, 1)
    assert names(tmp_path) == ["notes.txt", "state-0000000001.pt"]
    state_files.clear(str(tmp_path))
    assert names(tmp_path) == ["notes.txt"]


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "states"
    state_files.require(str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(UsageError, match="others than you can write there"):
        state_files.require(str(folder))


@pytest.mark.parametrize(
    ("most", "expected"), [(None, [2, 1, 4]), (5, [2, 1, 2]), (3, [2, 1]), (2, [2]), (1, [1])]
)
def test_slots_are_filled_host_by_host(most: int | None, expected: list[int]) -> None:
    limits = elastic.Limits(start=1, least=1, most=most)
    usable = [Host("a", 2), Host("b"), Host("c", 4)]
    assert [host.slots for host in elastic.plan(limits, usable)] == expected


def script(folder: pathlib.Path, text: str) -> pathlib.Path:
    path = folder / "hosts.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def run_again(found: DiscoveryScript, clock: SteppedClock) -> Sequence[Host]:
    """The hosts after the script has run once more."""
    clock.step(discovery._EVERY)
    hosts = found.now()
    assert found._running is not None
    while found._running is not None:
        time.sleep(0.01)
        hosts = found.now()
    return hosts


def test_a_script_is_run_again_and_its_failures_are_not(
    tmp_path: pathlib.Path, clock: SteppedClock
) -> None:
    listed = tmp_path / "listed"
    listed.write_text("h1:3\nh2 # without a number\n\n")
    found = DiscoveryScript(str(script(tmp_path, f"cat {listed}")), slots=2)
    try:
        assert found.first() == [Host("h1", 3), Host("h2", 2)]
        listed.write_text("h1:what\n")
        assert found.now() == [Host("h1", 3), Host("h2", 2)]
        assert found._running is None, "it is not asked before its time"
        assert run_again(found, clock) == [Host("h1", 3), Host("h2", 2)]
        listed.write_text("h3:1\n")
        assert run_again(found, clock) == [Host("h3", 1)]
    finally:
        found.close()


@pytest.mark.parametrize(
    ("text", "expected"), [("exit 3", "status 3"), ("echo h1:0", "'h1:0' is not a host")]
)
def test_a_script_has_to_work_at_the_beginning(
    tmp_path: pathlib.Path, text: str, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        DiscoveryScript(str(script(tmp_path, text)), slots=1).first()


def test_a_rank_learns_that_hosts_have_changed() -> None:
    board = failure_board.FailureBoard()
    assert not failure_board.hosts_have_changed(board.where)
    for rank in range(failure_board.ENTRIES + 1):
        board.add(100_000 + rank, "x" * 400, "y" * 400)
    assert not failure_board.hosts_have_changed(board.where)
    board.note_hosts()
    assert failure_board.hosts_have_changed(board.where)
    pid, file, _ = board.where.split()
    assert not failure_board.hosts_have_changed(f"{pid} {file} another")
