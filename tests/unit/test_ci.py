"""What tools/ci.py says of its stages: passed, failed, or skipped: nothing could be checked."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
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
    words = [line.split(" s  ")[1] for line in lines[-7:-3]]
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


def test_skipped_tests_of_pytest_reach_the_tally(ci: ModuleType, tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\n"
        "def test_one(): pass\n"
        "@pytest.mark.skip(reason='no root')\n"
        "def test_two(): pass\n"
    )
    conftest = Path(__file__).resolve().parents[1] / "conftest.py"
    (tmp_path / "conftest.py").write_text(conftest.read_text())
    file = tmp_path / "tally"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUN_TESTS_")}
    command = [sys.executable, "-m", "pytest", "-q", str(tests)]
    done = subprocess.run(
        command, env={**environment, "CI_TALLY": str(file)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done
    found = sys.modules["tally"].read(file)
    assert (found.passed, dict(found.skipped)) == (1, {"no root": 1})
