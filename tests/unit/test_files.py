"""Files that gradred writes at paths where another object may exist."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradred import UsageError
from gradred._util import files
from gradred.bench import options, plot, rank_zero
from gradred.launch import output, proc
from gradred.observe import hang_report


@pytest.fixture(autouse=True)
def nobody_waits() -> Iterator[None]:
    """A test whose open() blocks fails after 10 s."""

    def late(*_: object) -> None:
        raise TimeoutError("still waiting for somebody to read the pipe")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A named pipe that no process reads."""
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    return path


def test_pipe_that_nobody_reads_is_refused(pipe: Path) -> None:
    with pytest.raises(OSError, match=r"pipe that nobody reads.*pipe\.json"):
        files.create(pipe)


def test_pipe_that_is_read_gets_everything(pipe: Path) -> None:
    data, found = os.urandom(300_000), []  # more than a pipe holds, so later writes have to wait
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    file = None
    while file is None:
        try:
            file = files.create(pipe)
        except OSError:
            continue
    with open(file, "wb") as out:
        out.write(data)
    reader.join()
    assert found == [data]


def test_file_is_replaced_or_continued_and_a_new_one_is_new(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text, append in ((b"one", False), (b"two", False), (b"three", True)):
        with open(files.create(path, append=append), "wb") as out:
            out.write(text)
    assert path.read_bytes() == b"twothree"
    with pytest.raises(FileExistsError):
        files.create(path, new=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        files.create(tmp_path / "link", new=True)
    assert not (tmp_path / "elsewhere").exists()


def test_output_of_ranks_refuses_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank.0.txt")
    with pytest.raises(UsageError, match=r"rank\.0\.txt cannot be written.*pipe that nobody reads"):
        output.Files(str(tmp_path), 2)


def test_bench_neither_waits_for_a_reader_nor_ends_what_one_reads(pipe: Path) -> None:
    options.require_writable(str(pipe))
    with pytest.raises(OSError, match="pipe that nobody reads"):
        rank_zero.write_so_far(str(pipe), {"rows": []}, last=True)


def test_record_goes_through_no_link_in_the_place_of_its_draft(tmp_path: Path) -> None:
    (tmp_path / ".out.json.draft").symlink_to(tmp_path / "elsewhere")
    rank_zero.write_so_far(str(tmp_path / "out.json"), {"rows": []}, last=False)
    assert (tmp_path / "out.json").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_plot_refuses_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    os.mkfifo(tmp_path / "plot.svg")
    line = plot.Line("a", [8], [1.0], [1.0], [1.0])
    legend = plot.Legend("title", "line", "band", "below")
    with pytest.raises(OSError, match="pipe that nobody reads"):
        plot.draw(tmp_path / "plot.svg", legend, [line])


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of this process's report; the process starts without earlier reports."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(hang_report, "_reported", {})
    path = hang_report.report("a first one", met=True, failure=1)
    assert path is not None
    Path(path).unlink()
    return Path(path)


@pytest.mark.parametrize("what", ["pipe", "pipe that is read", "link", "folder"])
def test_report_of_a_timeout_waits_for_nobody_and_follows_no_link(
    report: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reads = None
    if what == "link":
        report.symlink_to(report.with_name("elsewhere"))
    elif what == "folder":
        report.mkdir()
    else:
        os.mkfifo(report)
        reads = os.open(report, os.O_RDONLY | os.O_NONBLOCK) if what != "pipe" else None
    assert hang_report.report("the reason", met=True, failure=2) is None
    errors = capsys.readouterr().err
    assert "no report of the ranks could be written" in errors
    assert str(report) in errors
    assert what == "folder" or "not a regular file" in errors
    assert not report.with_name("elsewhere").exists()
    if reads is not None:
        assert os.read(reads, 100) == b""
        os.close(reads)


def test_report_of_a_timeout_is_written_where_nothing_is(report: Path) -> None:
    assert hang_report.report("the reason", met=True, failure=2) == str(report)
    assert "the reason" in report.read_text()


def test_further_errors_of_a_failure_name_its_report_and_write_nothing(report: Path) -> None:
    assert hang_report.report("the reason", met=True, failure=2) == str(report)
    written = report.read_text()
    os.utime(report, (0, 0))  # another failure would have its own section by now
    assert hang_report.report("it failed before", met=False, failure=2) == str(report)
    assert report.read_text() == written


def test_last_ten_reports_of_jobs_are_kept(report: Path) -> None:
    user, folder = os.getuid(), report.parent
    for number in range(1, 13):
        old = folder / f"gradred-{user}-job-{number}-7.txt"
        old.touch()
        os.utime(old, (number, number))
    others = [folder / f"gradred-{user + 1}-job-1-7.txt", folder / f"gradred-{user}-job-1-7.txt~"]
    for other in others:
        other.touch()
        os.utime(other, (0, 0))
    assert hang_report.report("the reason", met=True, failure=2) == str(report)
    kept = [folder / f"gradred-{user}-job-{number}-7.txt" for number in range(4, 13)]
    assert {*folder.iterdir()} == {report, *kept, *others}


def test_reports_of_jobs_that_go_on_are_kept(report: Path) -> None:
    mine = f"{os.getpid()}-{proc.read_stat(os.getpid()).started}"
    alive = report.parent / f"gradred-{os.getuid()}-job-{mine}.txt"
    for number in range(1, 13):
        (report.parent / f"gradred-{os.getuid()}-job-{number}-7.txt").touch()
    alive.touch()
    os.utime(alive, (0, 0))
    assert hang_report.report("the reason", met=True, failure=2) == str(report)
    assert alive.exists()
    assert len(list(report.parent.iterdir())) == 11


def test_further_section_of_a_report_removes_nothing(report: Path) -> None:
    for number in range(12):
        (report.parent / f"gradred-{os.getuid()}-job-{number}-7.txt").touch()
    report.write_text("an earlier section")
    os.utime(report, (0, 0))
    assert hang_report.report("the reason", met=True, failure=2) == str(report)
    assert len(list(report.parent.iterdir())) == 13


REPORTS = """
from gradred.observe import hang_report
print(hang_report.report("the reason", met=True, failure=1))
"""


def test_ranks_that_one_process_starts_without_a_launcher_share_a_report(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", REPORTS]
    names = {
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert names == {f"{path}\n" for path in tmp_path.iterdir()}
    assert len(names) == 1
