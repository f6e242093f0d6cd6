"""What tools/ci.py says of its stages: passed, failed, or skipped: nothing could be checked."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.setenv("CI_TALLY", "")  # that of this very run, perhaps
    module = importlib.import_module("ci")
    monkeypatch.setattr(module, "BUILD", tmp_path)
    return module


def stage(ci: ModuleType, name: str, passed: int, skipped: dict[str, int], *, well: bool) -> object:
    def check() -> bool:
        sys.modules["tally"].add(passed, skipped)
        return well

    return ci.Stage(name, check)


def test_stage_that_checked_nothing_is_skipped_and_counted_apart(
    ci: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = [
        stage(ci, "all", 7, {}, well=True),
        stage(ci, "some", 5, {"no root": 2}, well=True),
        stage(ci, "none", 0, {"no root": 3}, well=True),
        stage(ci, "no compiler", 0, {"no clang++": 0}, well=True),
    ]
    assert ci.report(ci.run_stages(stages), 12.0) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split(" core-s  ")[1] for line in lines[-7:-3]]
    assert words == ["passed", "passed", "skipped: no root", "skipped: no clang++"]
    assert lines[-3:] == [
        "skipped: no root (2 in some; 3 in none)",
        "skipped tests: 5",
        "2 stages passed, 0 failed, 2 skipped, 12 s",
    ]


def test_failed_stage_is_failed_whatever_it_skipped(
    ci: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ci.report(ci.run_stages([stage(ci, "bad", 0, {"no root": 3}, well=False)]), 1.0) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 stages passed, 1 failed, 0 skipped, 1 s"


def test_test_that_was_tried_again_is_named_with_its_failures(
    ci: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sys.modules["tally"].Tally(passed=3, again={"test_a.py::test_late": 1})
    monkeypatch.setattr(sys.modules["tally"], "read", lambda _: found)
    assert ci.report(ci.run_stages([stage(ci, "faults", 0, {}, well=True)]), 1.0) == 0
    assert "tried again: test_a.py::test_late failed 1x (in faults)" in capsys.readouterr().out


def run_pytest(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest over one file, as CI runs it: with this project's conftest.py and a tally."""
    (folder / "test_some.py").write_text(text)
    conftest = Path(__file__).resolve().parents[1] / "conftest.py"
    (folder / "conftest.py").write_text(conftest.read_text())
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUN_TESTS_")}
    environment |= {"PYTHONPATH": str(conftest.parent)}  # of what it imports
    environment |= {"CI_TALLY": str(folder / "tally")}
    command = [sys.executable, "-m", "pytest", "-q", *options, str(folder / "test_some.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_test_that_hangs_ends_its_pytest_which_shows_the_stack(
    ci: ModuleType, tmp_path: Path
) -> None:
    text = (
        "import pytest, time\n"
        "@pytest.mark.timeout(0.2)\n"
        "def test_that_never_ends():\n"
        "    time.sleep(60)\n"
    )
    done = run_pytest(tmp_path, text)
    assert done.returncode == 1, done
    assert "Timeout" in done.stderr
    assert "line 4 in test_that_never_ends" in done.stderr


def test_skipped_tests_of_pytest_reach_the_tally(ci: ModuleType, tmp_path: Path) -> None:
    text = (
        "import pytest\n"
        "def test_one(): pass\n"
        "@pytest.mark.skip(reason='no root')\n"
        "def test_two(): pass\n"
    )
    done = run_pytest(tmp_path, text)
    assert done.returncode == 0, done
    found = sys.modules["tally"].read(tmp_path / "tally")
    assert (found.passed, dict(found.skipped)) == (1, {"no root": 1})


def test_file_that_a_source_distribution_lacks_or_has_otherwise_is_named(
    ci: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check = importlib.import_module("check_sdist")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    for name in ("same.h", "other.h", "lost.h"):
        (tmp_path / name).write_text(name)
    packed = tmp_path / "it-1.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(tmp_path / "same.h", "it-1/same.h")
        archive.add(tmp_path / "same.h", "it-1/other.h")
    needed = [Path(name) for name in ("same.h", "other.h", "lost.h")]
    assert check.differences(packed, needed) == [
        "lost.h is not in it-1.tar.gz",
        "other.h is another one in it-1.tar.gz",
    ]


def test_what_a_build_read_of_the_checkout_is_all_but_packages_and_what_it_made(
    ci: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check = importlib.import_module("check_sdist")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    for name in ("csrc/a.h", "build/cmake-1/made.h", ".venv-ci/numpy.h"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    lines = [f"    {tmp_path}/csrc/a.h", "  | ../../csrc/a.h", "    made.h", "a.o: #deps 3, VALID"]
    lines += ["    /usr/include/stdio.h", f"    {tmp_path}/.venv-ci/numpy.h"]
    found = set(check.of_the_checkout(lines, tmp_path / "build" / "cmake-1"))
    assert found == {Path("csrc/a.h")}
