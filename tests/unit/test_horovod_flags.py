"""horovodrun, and its flags on `gradred run`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gradred
from gradred import horovod, launch
from gradred.cli import main
from gradred.cli.horovod_flags import FLAGS, Flag

outside_jobs = pytest.mark.skipif(
    launch.inside_job() is not None, reason="ranks cannot start ranks"
)
HOROVODRUN = [sys.executable, str(Path(horovod.path(), "horovodrun"))]


def words_of(flag: Flag, name: str) -> list[str]:
    return [name, *["3"] * flag.values]


@outside_jobs
@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.names[0])
def test_each_flag_is_taken_in_all_spellings(
    flag: Flag, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in flag.names:
        status = main(["run", "--dry-run", "-np", "1", *words_of(flag, name), "true"])
        said = capsys.readouterr().err
        assert status == 0
        assert (name in said) == ("without effect" in said) == (not flag.variable)


@outside_jobs
def test_one_warning_names_all_that_have_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--cycle-time-ms", "5", "--autotune", "--mpi", "--autotune"]
    assert main(["run", "--dry-run", "-np", "1", *given, "true"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in said] == ["--cycle-time-ms, --autotune, --mpi"]


@outside_jobs
def test_value_that_is_no_number_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-np", "1", "--fusion-threshold-mb", "much", "true"]) == 2
    assert "--fusion-threshold-mb much" in capsys.readouterr().err


@outside_jobs
def test_horovodrun_starts_ranks_with_what_its_flags_set(tmp_path: Path) -> None:
    names = "HOROVOD_FUSION_THRESHOLD HOROVOD_TIMELINE HOROVOD_STALL_CHECK_DISABLE"
    program = f"import horovod, os; print(*(os.environ[name] for name in {names.split()!r}))"
    flags = ["--fusion-threshold-mb", "1.5", "--timeline-filename", "t.json", "--no-stall-check"]
    command = [*HOROVODRUN, "--num-proc", "2", *flags, "python", "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{3 << 19} t.json 1"] * 2
    assert "warning" not in done.stderr


@pytest.mark.parametrize("before", [[], ["-np", "2"], ["--autotune", "-H", "localhost:2"]])
@pytest.mark.parametrize("word", ["-v", "--version", "-cb", "--check-build"])
def test_horovodrun_says_what_it_is(before: list[str], word: str) -> None:
    if before and word == "-v":
        pytest.skip("further on it asks for more words")
    done = subprocess.run(
        [*HOROVODRUN, *before, word], capture_output=True, text=True, timeout=60, check=True
    )
    assert horovod.VERSION in done.stdout
    assert ("[X] MPI" in done.stdout) == (word in ("-cb", "--check-build"))


@outside_jobs
def test_questions_behind_the_program_are_its_own() -> None:
    command = [*HOROVODRUN, "-np", "1", "echo", "--check-build"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "--check-build"


@outside_jobs
def test_function_runs_with_horovods_arguments_in_their_places() -> None:
    with pytest.warns(UserWarning, match="without effect here: start_timeout, verbose, use_mpi"):
        found = horovod.run(max, (1, 2), None, 2, verbose=2, use_mpi=True, start_timeout=60)
    assert found == [2, 2]
    assert horovod.run(max, (1, 2), {}, 1, None, None, None, None, None, "localhost:1") == [2]


@pytest.mark.parametrize("given", ["min_num_proc", "host_discovery_script", "hostfile", "hosts"])
def test_function_is_refused_where_the_job_would_be_another_one(given: str) -> None:
    with pytest.raises(gradred.UsageError, match=given):
        horovod.run(max, (1, 2), num_proc=1, **{given: "elsewhere:2"})
    with pytest.raises(ValueError, match="use_gloo and use_mpi"):
        horovod.run(max, (1, 2), use_gloo=True, use_mpi=True)
