"""The text of `gradred ps` and of timeout reports about a rank, from the rank's status page."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import core_testing
import pytest

from gradred import _core
from gradred._util import clock, text
from gradred.element_types import ELEMENT_TYPES
from gradred.observe import status
from gradred.observe.status import Rank

ALLREDUCE, BCAST, REFUSED, LEFT = 0, 3, 9, 10  # values of Kind, in csrc/base/kinds.h
FLOAT64, INT8 = map(list(ELEMENT_TYPES).index, ("float64", "int8"))
MESSAGES = 1 << 63
TEXT = "allreduce of 1024 float64 with sum, 8192 bytes"
IN_FINALIZE = "MPI_Finalize until the other ranks come to it: process 8"
IN_OPERATION = (
    "operation 3 (bcast of 2 int8, 2 bytes) among 2 ranks; "
    "missing: rank 1 (process 8, sleeping, last left operation 2)"
)


def what(kind: int, dtype: int = 0, count: int = 0) -> int:
    """The value of Signature::what."""
    return kind << 60 | dtype << 48 | count


@pytest.fixture
def page(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "page"


def rank_of(page: pathlib.Path, content: bytes) -> Rank:
    """The rank as a reader of a status page sees it."""
    page.write_bytes(bytes(_core.STATUS_PAGE[0]) + content)
    about = {"pid": os.getpid(), "rank": 0, "size": 1}
    return status._read(about, {"gradred-rank": str(page)}, None, 0.0)


def wait_of(begun: int, call: int, state: str, waits_for: str, operation: int = 0) -> bytes:
    """The page of a rank that has waited for rank 1 for two seconds."""
    return core_testing.status_page_of_wait(
        core_testing.status_page(begun, call),
        since_ns=clock.now_ns() - 2_000_000_000,
        state=state,
        operation=operation,
        what=what(BCAST, INT8, 2) if operation else 0,
        missing=[1] if operation else [],
        waits_for=waits_for,
    )


def line(rank: Rank) -> str:
    return status.lines([rank])[1].split("): ", 1)[1]


def test_call_in_words_is_that_of_the_error_messages() -> None:
    assert _core.describe_call(what(ALLREDUCE, FLOAT64, 1024)) == TEXT


@pytest.mark.parametrize(
    ("begun", "call", "last", "fields"),
    [
        (18, what(ALLREDUCE, FLOAT64, 1024), f"operation 17 ({TEXT})", (17, "allreduce", 8192)),
        (
            1 | MESSAGES,
            what(ALLREDUCE, FLOAT64, 1024),
            f"operation 0 over messages ({TEXT})",
            (0, "allreduce", 8192),
        ),
        (
            3,
            what(LEFT, count=ALLREDUCE),
            "operation 2 (allreduce of a type or op that gradred leaves to the MPI)",
            (2, "allreduce", None),
        ),
        (4, what(REFUSED), "operation 3 (a call with refused arguments)", (3, "", None)),
    ],
)
def test_rank_that_does_not_wait_shows_the_operation_it_began_last(
    page: pathlib.Path,
    begun: int,
    call: int,
    last: str,
    fields: tuple[int, str, int | None],
) -> None:
    rank = rank_of(page, core_testing.status_page(begun, call))
    assert line(rank) == f"not waiting in gradred; last {last}"
    assert (rank.operation, rank.call, rank.bytes) == fields
    assert (rank.waits_s, rank.state, rank.missing) == (None, "", [])


def test_rank_that_has_begun_nothing_shows_no_operation(page: pathlib.Path) -> None:
    rank = rank_of(page, core_testing.status_page(0, 0))
    assert line(rank) == "not waiting in gradred"
    assert (rank.operation, rank.call, rank.bytes) == (None, "", None)


def test_rank_that_waits_shows_the_operation_it_waits_in_and_not_one_it_began_later(
    page: pathlib.Path,
) -> None:
    call = what(ALLREDUCE, FLOAT64, 1024)
    rank = rank_of(page, wait_of(6, call, "shared memory", IN_OPERATION, operation=3))
    assert line(rank) == f"has waited {rank.waits_s:.1f} s in {IN_OPERATION}"
    assert (rank.operation, rank.call, rank.bytes, rank.missing) == (3, "bcast", 2, [1])
    assert (rank.state, rank.waits_for) == ("shared memory", IN_OPERATION)


def test_rank_that_waits_in_no_operation_shows_both(page: pathlib.Path) -> None:
    call = what(ALLREDUCE, FLOAT64, 1024)
    rank = rank_of(page, wait_of(18, call, "finalize", IN_FINALIZE))
    waited = f"has waited {rank.waits_s:.1f} s in {IN_FINALIZE}"
    assert line(rank) == f"{waited}; last operation 17 ({TEXT})"
    assert (rank.operation, rank.call, rank.bytes) == (17, "allreduce", 8192)


@pytest.mark.parametrize("text", [b"17 and more", b"gradred pid", b"\xff\xfe", b"", b"\0\0"])
def test_file_that_is_named_alike_and_says_something_else_shows_no_rank(text: bytes) -> None:
    file = os.memfd_create("gradred-rank")
    try:
        os.write(file, text)
        assert [pid for pid, *_ in _core.shown_ranks() if pid == os.getpid()] == []
    finally:
        os.close(file)


def test_rank_is_found_by_what_its_file_says() -> None:
    file = os.memfd_create("gradred-rank-0123")
    try:
        os.write(file, b"gradred pid %d rank 3 size 8 spawned 0\0" % os.getpid())
        assert (os.getpid(), 3, 8, file) in _core.shown_ranks()
    finally:
        os.close(file)


def test_pipe_in_the_place_of_a_file_keeps_nobody_waiting() -> None:
    reads, writes = os.pipe()
    try:
        with pytest.raises(OSError, match="seek"):
            status._part(f"/proc/self/fd/{reads}", 0, 10)
    finally:
        os.close(reads)
        os.close(writes)


# ---- ranks with equal states -----------------------------------------------------------------


def waiting(rank: int, seconds: float, line_number: int, missing: str = "rank 4") -> Rank:
    text = f"operation 3 (bcast); missing: {missing}"
    where = [f"Thread 0x00007f{rank}ab (most recent call first):", f'  File "a.py", {line_number}']
    return Rank(
        job=7, rank=rank, size=6, pid=100 + rank, waits_s=seconds, state="messages", waits_for=text,
        last="", operation=3, call="bcast", bytes=None, missing=[4], stack=where,
    )  # fmt: skip


def test_ranks_with_equal_stacks_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "_program", lambda pid: f"python a.py {pid}")
    found = [waiting(0, 1, 9), waiting(1, 1.5, 9), waiting(2, 10.02, 9), waiting(3, 2, 8)]
    assert status.lines([*found, waiting(5, 2, 9)]) == [
        "job 7 (python a.py 100): 5 of 6 ranks on this host",
        "  rank 4: elsewhere, or has made no gradred.Comm yet",
        "  ranks 0-2, 5 (processes 100-102, 105): have waited 1.0-10.0 s in operation 3 (bcast); "
        "missing: rank 4",
        "      Thread (most recent call first):",
        '      File "a.py", 9',
        "  rank 3 (process 103): has waited 2.0 s in operation 3 (bcast); missing: rank 4",
        "      Thread 0x00007f3ab (most recent call first):",
        '      File "a.py", 8',
    ]


def test_lost_wake_ups_are_reported() -> None:
    page = bytearray(_core.STATUS_PAGE[1])
    assert status.parts(bytes(page))["lost_wake_ups"] == 0
    fault = dataclasses.replace(waiting(0, 1, 9), lost_wake_ups=2)
    assert "missing: rank 4; 2 lost wake-ups: please report this" in "\n".join(
        status.lines([fault])
    )


def test_end_of_the_main_thread_beside_others_is_reported() -> None:
    page = bytearray(_core.STATUS_PAGE[1])
    assert not status.parts(bytes(page))["main_thread_ended"]
    alone = dataclasses.replace(waiting(0, 1, 9), main_thread_ended=True)
    assert "missing: rank 4; its main thread has ended and other threads go on" in "\n".join(
        status.lines([alone])
    )


def test_ranks_with_equal_stacks_that_wait_for_others_are_distinguished() -> None:
    found = [waiting(0, 1, 9), waiting(1, 1, 9, missing="rank 5"), waiting(2, 1, 9)]
    named = [line.partition(":")[0] for line in status.lines(found)[2:4]]
    assert named == ["  ranks 0, 2 (processes 100, 102)", "  rank 1 (process 101)"]
    assert sum("a.py" in line for line in status.lines(found)) == 1


def test_lines_are_broken_at_the_width_of_the_terminal_and_nowhere_else() -> None:
    line = "  rank 0 (process 7): " + "a word and " * 20
    assert text.wrapped(line, None) == [line]
    parts = text.wrapped(line, 60)
    assert max(map(len, parts)) <= 60
    assert " ".join(part.strip() for part in parts) == line.strip()
    assert parts[0].startswith("  rank")
    assert all(part.startswith("      a") or part.startswith("      w") for part in parts[1:-1])


def test_kind_of_call_that_only_a_newer_version_knows_has_no_name() -> None:
    """A status page may be that of a rank with another version of gradred."""
    assert _core.name_and_bytes(what(15, FLOAT64, 3)) == ("", None)
    assert _core.name_and_bytes(what(LEFT, count=BCAST)) == ("bcast", None)
    assert _core.describe_call(what(15)) == "an unknown kind of call (15), 0 bytes"
