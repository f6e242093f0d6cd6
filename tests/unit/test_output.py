"""The output of several ranks: in whole lines, with their ranks, in their files."""

import os
import selectors
import signal

import pytest

from gradred.launch import exit_summary, foreground, output
from gradred.launch import job as jobs
from gradred.launch.job import Cause, Failure


class Shown:
    """A screen and its content."""

    def __init__(self, *, prefix=True, eager=False):
        self.text = b""
        label = foreground._labels(prefix, 2, False)
        self.screen = output.Screen(self._write, label, eager=eager)

    def _write(self, data):
        self.text += data


def test_lines_of_ranks_do_not_mix():
    shown = Shown()
    for piece in (b"a", b"b", b"c\nd"):
        for rank in range(2):
            shown.screen.feed(rank, "stdout", piece)
    assert shown.text == b"[0] abc\n[1] abc\n"
    shown.screen.finish()
    assert shown.text == b"[0] abc\n[1] abc\n[0] d\n[1] d"


def test_streams_of_a_rank_do_not_mix():
    shown = Shown()
    shown.screen.feed(0, "stdout", b"out")
    shown.screen.feed(0, "stderr", b"err\n")
    shown.screen.feed(0, "stdout", b"put\n")
    assert shown.text == b"[0] err\n[0] output\n"


def test_without_a_prefix_bytes_are_passed_on_as_they_are():
    shown = Shown(prefix=False)
    shown.screen.feed(1, "stdout", b"\xff\r\n\n\0x\n")
    assert shown.text == b"\xff\r\n\n\0x\n"


def test_every_line_of_a_piece_gets_its_prefix():
    shown = Shown()
    shown.screen.feed(1, "stdout", b"a\r\n\nb\n")
    assert shown.text == b"[1] a\r\n[1] \n[1] b\n"


def test_terminal_shows_a_prompt_and_keeps_it_apart_from_the_next_rank(monkeypatch):
    monkeypatch.setattr(output, "_SHOWN_AFTER", 0.0)
    shown = Shown(eager=True)
    shown.screen.feed(0, "stdout", b"name? ")
    shown.screen.show_unfinished()
    assert shown.text == b"[0] name? "
    shown.screen.feed(0, "stdout", b"thanks\n")
    assert shown.text == b"[0] name? thanks\n"
    shown.screen.feed(0, "stdout", b"and? ")
    shown.screen.show_unfinished()
    shown.screen.feed(1, "stdout", b"here\n")
    assert shown.text.endswith(b"[0] and? \n[1] here\n")


def test_progress_bar_is_shown_while_it_moves():
    shown = Shown()
    shown.screen.feed(0, "stderr", b"\r10 %\r20 %")
    assert shown.text == b"[0] \r[0] 10 %\r"


def test_line_without_an_end_is_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(output, "_LONGEST", 10)
    shown = Shown()
    shown.screen.feed(0, "stdout", b"x" * 11)
    assert shown.text == b"[0] " + b"x" * 11


@pytest.mark.parametrize(
    ("prefix", "ranks", "terminal", "label"),
    [
        (None, 2, False, b""),
        (None, 1, True, b""),
        (None, 2, True, b"[1] "),
        (True, 1, False, b"[1] "),
        (False, 2, True, b""),
    ],
)
def test_prefix_is_for_several_ranks_on_a_terminal_or_on_request(
    monkeypatch, prefix, ranks, terminal, label
):
    monkeypatch.setenv("NO_COLOR", "1")
    assert foreground._labels(prefix, ranks, terminal)(1) == label
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    assert (b"\x1b[" in foreground._labels(prefix, ranks, terminal)(1)) == (
        terminal and bool(label)
    )


def test_slow_reader_makes_the_ranks_wait_and_not_the_launcher():
    reads, writes = os.pipe()
    with selectors.PollSelector() as selector:
        writer = output.Writer(writes, "stdout", selector)
        writer.write(b"x" * 3_000_000)
        for key, mask in selector.select(0):
            key.data(mask)
        assert writer.congested()
        got = 0
        while got < 3_000_000:
            for key, mask in selector.select(0):
                key.data(mask)
            got += len(os.read(reads, 65536))
        assert not writer.congested()
        assert not selector.get_map()
    os.close(reads)
    os.close(writes)


def test_file_per_rank_sorts_like_the_ranks(tmp_path):
    files = output.Files(str(tmp_path / "new" / "folder"), 11)
    files.feed(2, b"two\n")
    files.feed(10, b"ten\n")
    files.feed(2, b"more")
    files.close()
    names = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert names[0] == "rank.00.txt"
    assert names[-1] == "rank.10.txt"
    assert (tmp_path / "new" / "folder" / "rank.02.txt").read_text() == "two\nmore"


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([2, 0, 1, 5], "ranks 0-2, 5"), ([4, 2], "ranks 2, 4")]
)
def test_ranks_are_named_shortly(ranks, text):
    assert exit_summary.ranks_text(ranks) == text


def test_first_cause_is_the_last_line_and_others_are_put_together():
    failures = [Failure(2, "h1", 137, Cause("killed by SIGKILL", passive=True), 1.0)]
    exited, aborted = Cause("exited with status 1"), Cause("killed by SIGABRT", passive=True)
    failures += [Failure(rank, "h1", 1, exited, 2.0) for rank in (0, 1, 3)]
    failures += [Failure(rank, "h2", 134, aborted, 3.0) for rank in (4, 5)]
    assert exit_summary.failure_lines(failures) == [
        "ranks 4, 5 on h2 were killed by SIGABRT",
        "ranks 0, 1, 3 on h1 exited with status 1",
        "rank 2 on h1 was killed by SIGKILL",
    ]
    assert exit_summary.survived_lines(failures[:1]) == [
        "rank 2 on h1 was killed by SIGKILL; the others went on without it"
    ]


def test_first_cause_is_first_by_its_clock_if_reported_a_moment_later(monkeypatch):
    job = object.__new__(jobs.Job)
    job.failures, job._moment_since, job._before = [], 0.0, 0
    times = iter([100.0, 100.4, 105.0])
    monkeypatch.setattr(jobs.clock, "now", lambda: next(times))
    reported_late, first_reported = (
        Failure(3, "h2", 137, Cause(""), 9.9),
        Failure(0, "h1", 14, Cause(""), 10.0),
    )
    job._order_in([first_reported])
    job._order_in([reported_late])
    job._order_in([Failure(1, "h1", 3, Cause(""), 5.0)])  # seconds later: this clock is wrong
    assert [failure.rank for failure in job.failures] == [3, 0, 1]


def test_ranks_that_had_lost_others_are_no_first_cause(monkeypatch):
    job = object.__new__(jobs.Job)
    job.failures, job._moment_since, job._before = [], 0.0, 0
    times = iter([100.0, 100.4, 105.0])
    monkeypatch.setattr(jobs.clock, "now", lambda: next(times))
    for rank, follows, at in ((0, True, 10.0), (3, True, 10.2), (2, False, 15.0)):
        job._order_in([Failure(rank, "h1", 3, Cause(""), at, follows)])
    assert [failure.rank for failure in job.failures] == [2, 0, 3]


class EndedJob:
    """A finished job, as the exit summary reads it."""

    left_hanging = False
    survived, missing = (), ()
    ended_late = ()
    status = mpiexec_status = 1
    ended_spawned = 0

    def __init__(self, failures, silent):
        self.failures = self.fatal = failures
        self.silent = silent


@pytest.mark.parametrize("how", ["failed", "interrupted", "timed out"])
def test_first_cause_is_named_after_the_ranks_that_cannot_be_reached(how):
    shown = object.__new__(foreground._Foreground)
    lost = Failure(2, "h2", 1, Cause("lost: its host does not answer", passive=True), 1.0)
    shown._job = EndedJob([lost] if how == "failed" else [], {"h2": [2, 3]})
    shown._look = foreground.Look(timeout=9.0)
    shown._interrupted_by = signal.SIGINT if how == "interrupted" else None
    shown._timed_out, shown._unwritable = how == "timed out", None
    silent, cause = shown._last_words()
    assert silent == ("rank 3" if how == "failed" else "ranks 2, 3") + (
        " on h2 cannot be reached any more"
    )
    assert (
        cause
        == {
            "failed": "rank 2 on h2 was lost: its host does not answer",
            "interrupted": "interrupted by SIGINT",
            "timed out": "the job did not end within 9 s (--timeout): ended",
        }[how]
    )
