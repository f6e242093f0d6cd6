"""The reports of the gate and the nightly run, and the choice of tests by changes."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setenv("CI_TALLY", "")  # this very run may have set it
    module = importlib.import_module("stages")
    monkeypatch.setattr(module, "BUILD", tmp_path)
    return module


def stage(
    stages: ModuleType, name: str, passed: int, skipped: dict[str, int], *, well: bool
) -> object:
    def check() -> bool:
        sys.modules["tally"].add(passed, skipped)
        return well

    return stages.Stage(name, check)


def test_stage_that_checked_nothing_is_skipped_and_counted_apart(
    stages: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [
        stage(stages, "all", 7, {}, well=True),
        stage(stages, "some", 5, {"no root": 2}, well=True),
        stage(stages, "none", 0, {"no root": 3}, well=True),
        stage(stages, "no compiler", 0, {"no clang++": 0}, well=True),
    ]
    assert stages.report(stages.run_stages(table, "ci.py"), 12.0) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split(" core-s  ")[1] for line in lines[-7:-3]]
    assert words == ["passed", "passed", "skipped: no root", "skipped: no clang++"]
    assert lines[-3:] == [
        "skipped: no root (2 in some; 3 in none)",
        "skipped tests: 5",
        "2 stages passed, 0 failed, 2 skipped, 12 s, 0 core-s",
    ]


def test_failed_stage_is_failed_whatever_it_skipped(
    stages: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = stage(stages, "bad", 0, {"no root": 3}, well=False)
    assert stages.report(stages.run_stages([bad], "ci.py"), 1.0) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "0 stages passed, 1 failed, 0 skipped, 1 s, 0 core-s"


def test_stage_that_raises_has_failed_and_the_others_run(
    stages: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def check() -> bool:
        raise FileNotFoundError("no wheel")

    table = [stages.Stage("bad", check), stage(stages, "good", 1, {}, well=True)]
    assert [one.word for one in stages.run_stages(table, "ci.py")] == ["FAILED", "passed"]
    assert "FileNotFoundError: no wheel" in capsys.readouterr().out


def test_part_of_no_name_of_a_stage_is_an_error(stages: ModuleType) -> None:
    table = [stage(stages, "faults", 1, {}, well=True)]
    assert stages.named(table, None, "fault") == table
    with pytest.raises(SystemExit, match="no stage has 'typo' in its name"):
        stages.named(table, None, "typo")


def test_test_that_was_tried_again_is_named_with_its_failures(
    stages: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sys.modules["tally"].Tally(passed=3, again={"test_a.py::test_late": 1})
    monkeypatch.setattr(sys.modules["tally"], "read", lambda _: found)
    faults = stage(stages, "faults", 0, {}, well=True)
    assert stages.report(stages.run_stages([faults], "ci.py"), 1.0) == 0
    assert "tried again: test_a.py::test_late failed 1x (in faults)" in capsys.readouterr().out


def run_pytest(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file as CI does: with this project's conftest.py and a tally."""
    (folder / "test_some.py").write_text(text)
    conftest = Path(__file__).resolve().parents[1] / "conftest.py"
    (folder / "conftest.py").write_text(conftest.read_text())
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUN_TESTS_")}
    environment |= {"PYTHONPATH": str(conftest.parent)}  # for the modules that it imports
    environment |= {"CI_TALLY": str(folder / "tally")}
    command = [sys.executable, "-m", "pytest", "-q", *options, str(folder / "test_some.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_test_that_hangs_ends_its_pytest_which_shows_the_stack(
    stages: ModuleType, tmp_path: Path
) -> None:
    text = (
        "import pytest, time\n"
        "@pytest.mark.timeout(0.3)\n"
        "def test_that_never_ends():\n"
        "    time.sleep(60)\n"
    )
    done = run_pytest(tmp_path, text)
    assert done.returncode == 1, done
    assert "Timeout" in done.stderr
    assert "line 4 in test_that_never_ends" in done.stderr


@pytest.mark.parametrize(
    ("variables", "reason"),
    [({}, "no root"), ({"CI_TALLY_NAMES": "1"}, "no root: test_some.py::test_two")],
)
def test_skipped_tests_of_pytest_reach_the_tally(
    variables: dict[str, str],
    reason: str,
    stages: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text = (
        "import pytest\n"
        "def test_one(): pass\n"
        "@pytest.mark.skip(reason='no root')\n"
        "def test_two(): pass\n"
    )
    done = run_pytest(tmp_path, text, f"--rootdir={tmp_path}")
    assert done.returncode == 0, done
    found = sys.modules["tally"].read(tmp_path / "tally")
    assert (found.passed, dict(found.skipped)) == (1, {reason: 1})


def run_checks(folder: Path, *calls: str) -> str:
    """The output of a program that calls functions of tools/checks.py, in an empty folder."""
    tools = str(ROOT / "tools")
    lines = [f"import sys; sys.path.append({tools!r})", "import checks, processes"]
    lines.append("processes._TO_LEAVE_BY_ITSELF = 0.5")
    program = "\n".join([*lines, *calls])
    command = [sys.executable, "-c", program]
    environment = os.environ | {"CI_TALLY": ""}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done
    return done.stdout


def test_process_that_a_program_of_the_core_leaves_behind_is_found(tmp_path: Path) -> None:
    program = tmp_path / "some_test"
    program.write_text("#!/bin/sh\nsleep 47 &\n")
    program.chmod(0o755)
    said = run_checks(
        tmp_path, f"print(checks.run_programs([checks.Program(checks.Path({str(program)!r}))]))"
    )
    assert "1 passed, 0 failed" in said
    assert re.search(r"left behind: process \d+ sleep 47", said)
    assert said.endswith("False\n")


@pytest.mark.parametrize(
    ("leave", "well"), [("", True), ("subprocess.Popen(['sleep', '47'])", False)]
)
def test_second_try_is_well_unless_the_first_has_left_a_process_behind(
    leave: str, well: bool, tmp_path: Path
) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pathlib, subprocess\n"
        "def test_that_fails_once():\n"
        "    tried = pathlib.Path('tried')\n"
        "    if not tried.exists():\n"
        "        tried.touch()\n"
        f"        {leave or 'pass'}\n"
        "        raise AssertionError\n"
    )
    call = f"print(checks.jobs(checks.Path({sys.prefix!r}), 'test_some.py', tries=2))"
    said = run_checks(tmp_path, call)
    assert ("left behind: process" in said) is not well
    assert said.endswith(f"{well}\n")


@pytest.mark.parametrize("without", ["", "1"])
def test_wheel_stage_wants_pytorch_unless_a_variable_says_that_there_is_none(
    without: str, stages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checks = importlib.import_module("checks")
    monkeypatch.setenv("TESTS_WITHOUT_TORCH", without)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "Beside", lambda *_, **__: SimpleNamespace(wait=lambda: 0))
    monkeypatch.setattr(checks, "build_wheel", lambda _: Path("it.whl"))
    monkeypatch.setattr(checks, "run", lambda *words, **_: checks.TORCH not in words)
    assert checks.wheel() is bool(without)
    assert checks.has_torch() is not bool(without)


def test_file_that_a_source_distribution_lacks_or_has_otherwise_is_named(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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


def test_files_of_a_wheel_are_those_of_both_packages(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "it.whl", "w") as wheel:
        for name in ("gradred/a.py", "gradred/b.so", "gradred_lab/c.json", "it.dist-info/RECORD"):
            wheel.writestr(name, "")
    found = importlib.import_module("check_sdist").copied_into(tmp_path / "it.whl")
    assert found == {Path("src/gradred/a.py"), Path("src/gradred_lab/c.json")}


def packed_wheel(folder: Path, tag: str, stated: str, extension: str) -> Path:
    """A wheel with these tags in its name, in its metadata, and in its extension's name."""
    path = folder / f"it-1-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("it-1.dist-info/WHEEL", f"Root-Is-Purelib: false\nTag: {stated}\n")
        wheel.writestr(f"gradred/_core{extension}", "")
    return path


def test_wheel_whose_tags_are_not_those_of_its_extension_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check = importlib.import_module("check_wheel")
    suffix = ".cpython-314t-x86_64-linux-gnu.so"
    monkeypatch.setattr(check.sysconfig, "get_config_var", lambda _: suffix)
    monkeypatch.setattr(check.sysconfig, "get_platform", lambda: "linux-x86_64")
    tag = "cp314-cp314t-linux_x86_64"
    assert check.wrong_tags(packed_wheel(tmp_path, tag, tag, suffix)) == []
    any_python = packed_wheel(tmp_path, "py3-none-any", tag, suffix)
    assert check.wrong_tags(any_python) == [f"{any_python.name} should end with {tag}.whl"]
    found = check.wrong_tags(packed_wheel(tmp_path, tag, "py3-none-any", suffix))
    assert found == [f"its tags are ['py3-none-any'], not [{tag!r}]"]
    found = check.wrong_tags(packed_wheel(tmp_path, tag, tag, ".cpython-311-x86_64-linux-gnu.so"))
    assert found == [f"it has no gradred/_core{suffix}"]


def test_wheel_that_links_a_library_of_its_own_meets_no_policy_of_manylinux() -> None:
    policy_of = importlib.import_module("check_wheel").policy_of
    shown = 'it.whl is consistent with the\nfollowing platform tag: "{}".\n'
    assert policy_of(shown.format("manylinux_2_36_x86_64")) == "manylinux_2_36_x86_64"
    assert policy_of(shown.format("linux_x86_64")) is None  # what auditwheel says of such a wheel
    assert policy_of("auditwheel: error: not a platform wheel") is None


def test_what_a_build_read_of_the_checkout_is_all_but_packages_and_what_it_made(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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


def chosen(*files: str) -> set[str]:
    return {*importlib.import_module("since").choose(files).tests}


def test_change_of_a_command_concerns_its_own_tests() -> None:
    always = {f"tests/unit/test_{name}.py" for name in ("docs", "layers", "wall")}
    own = {"tests/jobs/test_doctor.py", "tests/hosts/test_commands.py"}
    assert chosen("src/gradred/doctor/job.py") == own | always


@pytest.mark.parametrize(
    ("file", "concerned"),
    [
        ("src/gradred_lab/pictures.py", True),
        ("src/gradred/bench/options.py", True),
        ("src/gradred/launch/mpi.py", True),  # refuse_inside_job, a name of gradred.launch
        ("src/gradred/launch/hosts.py", False),
        ("src/gradred/bench/probe.py", False),
        ("csrc/base/types.h", False),
        ("tests/unit/test_train.py", False),
        ("tests/lab/numpy_training.py", True),
    ],
)
def test_tests_of_the_laboratory_run_if_it_or_a_name_that_it_uses_has_changed(
    file: str, concerned: bool
) -> None:
    own = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "lab").glob("test_*.py")}
    assert len(own) > 10
    assert chosen(file) & own == (own if concerned else set())


@pytest.mark.parametrize(
    ("row", "files", "runs"),
    [
        ({"verdict": "passed"}, ["src/gradred/doctor/job.py"], False),
        ({"verdict": "passed"}, ["src/gradred_lab/cli/train.py"], True),
        ({"verdict": "passed", "uncommitted": ["a.py"]}, [], True),
        ({"verdict": "FAILED"}, [], True),
        ({"verdict": "passed"}, None, True),  # git does not have the commit
    ],
)
def test_gate_runs_the_laboratory_if_it_differs_from_the_nightly_run(
    row: dict[str, Any],
    files: list[str] | None,
    runs: bool,
    stages: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ci, since = importlib.import_module("ci"), importlib.import_module("since")
    monkeypatch.setattr(ci.nightly_record, "RECORD", tmp_path / "nightly.json")
    recorded = nightly()["stages"][0] | {"name": "laboratory"} | row
    ci.nightly_record.RECORD.write_text(json.dumps(nightly() | {"stages": [recorded]}))
    ran: list[bool] = []

    def changed(_: str) -> list[str]:
        if files is None:
            raise since.UnknownRevisionError
        return files

    monkeypatch.setattr(since, "changed", changed)
    monkeypatch.setattr(ci, "laboratory_alone", lambda: ran.append(True) or True)
    assert ci.laboratory()
    assert ran == [True] * runs


def test_change_of_the_package_concerns_its_examples_and_the_pages() -> None:
    choice = importlib.import_module("since").choose(["src/gradred/ops.py"])
    assert choice.doctests
    assert "tests/unit/test_docs.py" in choice.tests


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("observe/hang_report.py", "tests/faults/test_reports.py"),
        ("named.py", "tests/faults/test_named.py"),
        ("comm.py", "tests/faults/test_faults.py"),
        ("bench/options.py", "tests/hosts/test_commands.py"),
    ],
)
def test_change_concerns_the_tests_of_faults_and_hosts_that_use_it(file: str, test: str) -> None:
    assert test in chosen(f"src/gradred/{file}")


def test_change_of_the_devices_concerns_no_test_of_the_launcher() -> None:
    found = chosen("csrc/device/cuda_memory.cc")
    assert {"tests/gpu/test_workspaces.py", "tests/jobs/test_device.py"} <= found
    of_the_launcher = ("run_command", "supervisor", "wrong_launcher")
    assert not {f"tests/jobs/test_{name}.py" for name in of_the_launcher} & found
    assert not [test for test in found if test.startswith("tests/faults/")]


def test_change_of_the_layers_below_all_concerns_nearly_every_test() -> None:
    since = importlib.import_module("since")
    others = [test for test in since.all_tests() if not test.startswith("tests/lab/")]
    assert len(chosen("csrc/base/types.h")) > 0.9 * len(others)


@pytest.mark.parametrize("file", ["cli/run.py", "cli/__init__.py", "__main__.py"])
def test_change_of_the_command_line_concerns_the_tests_that_start_jobs_by_it(file: str) -> None:
    found = chosen(f"src/gradred/{file}")
    assert {"tests/jobs/test_run_command.py", "tests/hosts/test_run.py"} <= found
    assert {"tests/faults/test_faults.py", "tests/faults/test_kills.py"} <= found


def test_change_of_what_tests_alone_use_of_the_core_concerns_them() -> None:
    threads = {f"tests/threads/test_{name}.py" for name in ("faults", "matrix", "trace")}
    assert threads | {"tests/unit/test_mutants.py"} <= chosen("csrc/testing/mutants.cc")


def test_change_of_the_program_of_ranks_without_python_concerns_its_tests() -> None:
    assert "tests/core/test_without_python.py" in chosen("csrc/tests/ranks/ends.cc")


@pytest.mark.parametrize(
    "file", ["src/gradred/torch/__init__.py", "tests/pytorch/test_closures.py"]
)
def test_wheel_is_built_before_the_stages_with_torch(file: str) -> None:
    since = importlib.import_module("since")
    names = [stage.name for stage in since.stages(since.choose([file]), [])]
    assert names.index("sdist and wheel") < names.index("torch")


def test_each_stage_with_ranks_runs_its_own_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    since, checks = importlib.import_module("since"), importlib.import_module("checks")
    runs: list[tuple[Path, tuple[str, ...]]] = []
    monkeypatch.setattr(checks, "ranks", lambda where, *words: runs.append((where, words)))
    monkeypatch.setattr(checks, "has_torch", lambda: True)
    choice = since.choose(["tests/mpi/test_scans.py", "tests/pytorch/test_closures.py"])
    for stage in since.stages(choice, []):
        if stage.name in ("tests, 2 ranks", "torch"):
            stage.check()
    assert runs == [
        (checks.MPICH, ("--no-unit", "--ranks", "2", "--paths", "tests/mpi/test_scans.py")),
        (checks.OPENMPI, ("--no-unit", "--torch", "--ranks", "2")),
    ]


def test_file_that_was_moved_has_changed_where_it_was_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = importlib.import_module("since")
    monkeypatch.setattr(since, "ROOT", tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@b"]
    (tmp_path / "old.py").write_text("x = 1\n" * 9)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"], ["mv", "old.py", "new.py"]):
        subprocess.run([*git, *words], check=True)
    assert since.changed("HEAD") == ["new.py", "old.py"]


def test_change_of_what_runs_the_tests_concerns_the_whole_gate() -> None:
    choice = importlib.import_module("since").choose(["docs/gpu.md", "tools/run_tests.py"])
    assert choice.whole == "tools/run_tests.py"
    assert importlib.import_module("since").stages(choice, ["the gate"]) == ["the gate"]


def test_change_of_an_example_concerns_the_tests_that_name_it() -> None:
    assert "tests/jobs/test_torchrun.py" in chosen("examples/ddp.py")


def test_what_runs_is_named_and_what_is_left_out_is_named_by_folders() -> None:
    said = str(importlib.import_module("since").choose(["src/gradred/doctor/job.py"]))
    runs, left_out = said.split(" are left out:\n")
    assert "  tests/jobs/test_doctor.py\n  tests/unit/test_docs.py\n" in runs
    assert "test_doctor" not in left_out
    assert "  tests/mpi\n" in left_out
    assert "tests/jobs/test_bench.py" in left_out


def test_programs_of_the_core_that_run_are_named() -> None:
    said = str(importlib.import_module("since").choose(["csrc/tests/matrix.cc"]))
    assert "  of csrc/tests: matrix\n" in said


@pytest.mark.parametrize("revision", ["nosuch", "README.md", "--all"])
def test_revision_that_is_no_commit_is_one_line(revision: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / "ci.py"), f"--since={revision}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"--since {revision}: git finds no such commit (fatal: ")


@pytest.mark.parametrize(
    ("failed", "load", "said"), [(["x"], 1e3, True), (["x"], 0.0, False), ([], 1e3, False)]
)
def test_failures_on_a_busy_machine_come_with_its_load(
    failed: list[str],
    load: float,
    said: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CI_TALLY", "")  # this very run may have set it
    run_tests = importlib.import_module("run_tests")
    assert run_tests.report([run_tests.Outcome("a job", passed=1, failed=failed)], load) == bool(
        failed
    )
    assert ("the machine is busy (load 1000.0" in capsys.readouterr().out) == said


def test_tests_of_the_gate_are_there() -> None:
    gate = importlib.import_module("gate_tests")
    for table in (gate.FAULTS, gate.COMMANDS, gate.FRONT_ENDS, gate.LABORATORY):
        for test in table.values():
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(), test


def test_what_three_ranks_do_as_two_is_there_and_runs_nightly_with_three() -> None:
    run_tests = importlib.import_module("run_tests")
    left_out = [name for names in run_tests.AS_WITH_TWO.values() for name in names]
    for name in left_out:
        file, _, test = name.partition("::")
        source = (ROOT / "tests" / "mpi" / f"test_{file}.py").read_text()
        assert f"def {test}(" in source or not test, name
        assert not re.search(r"size (< 3|!= 3|> 2)", source, re.IGNORECASE) or test, name
    assert len(run_tests.tests_of(3, whole=False)) == 1 + len(left_out) == 1 + len(set(left_out))
    for ranks, whole in ((2, False), (2, True), (3, True)):
        assert run_tests.tests_of(ranks, whole=whole) == ["tests/mpi"]


def test_nightly_run_has_all_tests_of_three_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, nightly = importlib.import_module("checks"), importlib.import_module("nightly")
    (stage,) = (one for one in nightly.NIGHTLY if one.name == "mpich, 3 ranks")
    monkeypatch.setattr(checks, "ranks", lambda *words, **_: list(words))
    assert stage.check() == [checks.MPICH, "--no-unit", "--ranks", "3", "--whole"]


def nightly(
    verdict: str = "passed", again: tuple[str, ...] = (), uncommitted: tuple[str, ...] = ()
) -> dict[str, Any]:
    row = {"name": "a stage", "verdict": verdict, "seconds": 100.0, "core_seconds": 60.0}
    row |= {"passed": 7, "skipped": {"no root": 1}, "again": dict.fromkeys(again, 1)}
    row |= {"commit": "abcdef" * 6, "uncommitted": uncommitted, "again_before": ["test_late"]}
    return {
        "schema": "gradred-nightly/1",
        "date": "2026-11-27T09:00:00+00:00",
        "commit": "abcdef" * 6,
        "machine": {"cpu": "a processor", "cores": 2, "python": "3.11"},
        "stages": [row],
    }


@pytest.mark.parametrize(
    ("record", "red"),
    [
        (nightly(), []),
        (nightly(again=("test_new",)), []),
        (nightly("FAILED"), ["stage a stage: FAILED"]),
        (nightly("not run"), []),
        (nightly(again=("test_late",)), ["test_late needed a second try in two records running"]),
        (nightly(uncommitted=("a.py",)), ["it ran with changes that no commit has: a.py"]),
    ],
)
def test_record_is_red_by_a_failure_or_a_second_try_in_two_records(
    record: dict[str, Any], red: list[str]
) -> None:
    assert importlib.import_module("nightly_record").reasons(record) == red


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ("passed", "green"),
        ("FAILED", "red"),
        ("not run", "incomplete"),
        ("skipped", "incomplete"),
    ],
)
def test_run_that_was_interrupted_or_skipped_stages_is_neither_green_nor_red(
    found: str, word: str
) -> None:
    assert importlib.import_module("nightly_record").verdict(nightly(found)) == word


def test_page_of_the_nightly_run_is_what_its_record_says() -> None:
    record = importlib.import_module("nightly_record")
    assert record.PAGE.read_text() == record.page(record.load())


def test_page_tells_what_was_skipped_and_tried_again_and_which_row_is_of_another_commit() -> None:
    record = nightly(again=("test_late",))
    record["stages"].append(record["stages"][0] | {"name": "older", "commit": "0123456789ab"})
    said = importlib.import_module("nightly_record").page(record)
    assert "Verdict: **red**" in said
    assert "| a stage | passed | 1.7 | 60 | 7 | 1 |  |" in said
    assert "| older | passed | 1.7 | 60 | 7 | 1 | 0123456789 |" in said
    assert "| 2 | 2 | no root |" in said
    assert "| `test_late` | a stage | 1 |" in said


@pytest.fixture
def nights(stages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/nightly.py with a separate record and four stages."""
    run, record = map(importlib.import_module, ("nightly", "nightly_record"))
    monkeypatch.setattr(record, "RECORD", tmp_path / "nightly.json")
    monkeypatch.setattr(record, "PAGE", tmp_path / "nightly.md")
    monkeypatch.setattr(run, "BUILD", tmp_path)
    monkeypatch.chdir(ROOT)
    names = [*run.BUILDS, "x", "y"]
    monkeypatch.setattr(run, "NAMES", names)
    monkeypatch.setattr(run, "NIGHTLY", [stages.Stage(name, lambda: True) for name in names])
    monkeypatch.setattr(run, "uncommitted", list)
    record.RECORD.write_text(json.dumps(nightly() | {"stages": []}))
    return run


def noted(nights: ModuleType, *tries: str, stage: str = "x") -> dict[str, Any]:
    """The row of a stage after "COMMIT VERDICT TEST..." each; those tests needed a second try."""
    verdict = sys.modules["stages"].Verdict
    (of,) = [one for one in nights.NIGHTLY if one.name == stage]
    for one in tries:
        commit, word, *again = one.split()
        nights.note(verdict(of, 1.0, 1.0, word, 1, Counter(), Counter(again)), commit)
    rows = nights.nightly_record.load()["stages"]
    return {row["name"]: row for row in rows}[stage]


@pytest.mark.parametrize(
    ("tries", "commit", "verdict"),
    [
        (["c1 FAILED"], "c1", "FAILED"),
        (["c1 FAILED", "c2 skipped"], "c1", "FAILED"),
        (["c1 FAILED", "c1 skipped"], "c1", "FAILED"),
        (["c1 FAILED", "c2 passed"], "c2", "passed"),
        (["c1 passed", "c2 skipped"], "c2", "skipped"),
    ],
)
def test_row_of_a_stage_stays_until_it_has_run_again(
    tries: list[str], commit: str, verdict: str, nights: ModuleType
) -> None:
    noted(nights, *tries)
    noted(nights, "c3 passed", stage="y")  # this gives the record another commit
    row = noted(nights)
    assert (row["commit"], row["verdict"]) == (commit, verdict)
    assert nights.nightly_record.is_not_red(nights.NAMES) is (verdict != "FAILED")


def test_stage_that_has_failed_stays_in_the_record_though_no_table_has_it(
    nights: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted(nights, "c1 FAILED")
    noted(nights, "c1 passed", stage="y")
    monkeypatch.setattr(nights, "NAMES", [*nights.BUILDS, "y"])
    assert noted(nights, "c2 passed", stage="y")["commit"] == "c2"
    assert noted(nights)["verdict"] == "FAILED"
    assert not nights.nightly_record.is_not_red(nights.NAMES)


@pytest.mark.parametrize(
    ("tries", "again", "again_before"),
    [
        (["c1 FAILED", "c1 passed"], {"stage x": 1}, []),
        (["c1 FAILED", "c1 passed", "c1 passed"], {"stage x": 1}, []),
        (["c1 FAILED", "c1 FAILED", "c1 passed"], {"stage x": 2}, []),
        (["c1 FAILED", "c2 passed"], {}, []),
        (["c1 passed a", "c1 passed"], {"a": 1}, []),
        (["c1 passed a", "c1 skipped", "c2 passed"], {}, ["a"]),
        (["c1 passed a", "c2 passed b", "c2 passed"], {"b": 1}, ["a"]),
        (["c1 passed a", "c2 skipped", "c3 passed a"], {"a": 1}, ["a"]),
        (["c1 passed a", "c2 passed", "c3 passed a"], {"a": 1}, []),
    ],
)
def test_second_tries_are_kept_and_compared_with_the_last_record_in_which_the_stage_ran(
    tries: list[str], again: dict[str, int], again_before: list[str], nights: ModuleType
) -> None:
    row = noted(nights, *tries)
    assert (row["again"], row["again_before"]) == (again, again_before)


def test_second_try_is_compared_across_a_record_in_which_the_stage_has_not_run(
    nights: ModuleType,
) -> None:
    noted(nights, "c1 passed a")
    noted(nights, "c2 passed", stage="y")
    assert noted(nights, "c3 passed a")["again_before"] == ["a"]
    assert not nights.nightly_record.is_not_red(nights.NAMES)


def test_stage_that_the_record_does_not_have_makes_it_incomplete(
    nights: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nights.nightly_record.is_not_red(nights.NAMES)
    said = capsys.readouterr().out
    assert said == "no nightly run has been recorded yet: run `make nightly`\n"
    for name in nights.NAMES:
        noted(nights, "c1 passed", stage=name)
    assert nights.nightly_record.is_not_red([*nights.NAMES, "new"])
    said = capsys.readouterr().out
    assert "commit c1: incomplete\n  stage new: not run\n" in said


@pytest.mark.parametrize(("passed", "well"), [(5, True), (4, False)])
def test_round_that_failed_under_load_fails_the_gate(
    passed: int,
    well: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ci = importlib.import_module("ci")
    record = {"date": "2026-01-02T", "commit": "c1", "passed": passed, "rounds": [{}] * 5}
    (tmp_path / "load.json").write_text(json.dumps(record))
    monkeypatch.setattr(ci.nightly_record, "UNDER_LOAD", tmp_path / "load.json")
    monkeypatch.setattr(ci.nightly_record, "is_not_red", lambda _: True)
    assert ci.records() is well
    assert f"{passed} of 5 rounds passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("only", "fresh", "names"),
    [
        (None, False, ["sdist and wheel", "y"]),
        (None, True, ["make test", "sdist and wheel", "x", "y"]),
        ("x", False, ["sdist and wheel", "x"]),
        ("make", False, ["make test", "sdist and wheel"]),
    ],
)
def test_what_builds_runs_before_all_others_unless_it_has_a_verdict_on_the_commit(
    only: str | None, fresh: bool, names: list[str], nights: ModuleType
) -> None:
    noted(nights, "c2 passed", stage="make test")
    noted(nights, "c1 passed", stage="sdist and wheel")
    noted(nights, "c2 FAILED")
    noted(nights, "c2 skipped", stage="y")
    assert [one.name for one in nights.to_run("c2", only, fresh)] == names


def test_stage_that_ran_with_other_uncommitted_files_runs_again(
    nights: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in nights.NAMES:
        noted(nights, "c1 passed", stage=name)
    assert not nights.to_run("c1", None, False)
    monkeypatch.setattr(nights, "uncommitted", lambda: ["a.py"])
    assert noted(nights, "c1 passed")["uncommitted"] == ["a.py"]
    monkeypatch.setattr(nights, "uncommitted", list)
    assert [one.name for one in nights.to_run("c1", None, False)] == ["x"]


def test_run_stops_and_records_nothing_once_the_head_has_moved(
    nights: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = iter(["c1", "c1", "c2"])
    monkeypatch.setattr(nights, "head", lambda: next(heads))
    monkeypatch.setattr(sys, "argv", ["nightly.py"])
    with pytest.raises(SystemExit, match="HEAD has moved"):
        nights.main()
    rows = nights.nightly_record.load(nights.NAMES)["stages"]
    assert [row["verdict"] for row in rows] == ["passed", "not run", "not run", "not run"]
