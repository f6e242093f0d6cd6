"""`gradred run --preload`: programs that know nothing of gradred, in C and in Python.

The C programs stand in tests/preload. They are compiled by the MPI's own compiler command.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bounds import within
from hosts import faked

from gradred import config, launch
from gradred.launch import preload

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

SOURCES = Path(__file__).resolve().parents[1] / "preload"
PATHS = os.pathsep.join(filter(None, sys.path))

Compile = Callable[..., str]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(config.PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", PATHS)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """A function that compiles a program of tests/preload, once, and returns its path."""
    folder = tmp_path_factory.mktemp("programs")

    def compile_one(
        source: str, command: str = "mpicc", compiler: str = "cc", *options: str
    ) -> str:
        mpi = launch.find_mpi()
        near = mpi.launcher.parent / command
        found = str(near) if near.exists() else shutil.which(command)
        if found is None or shutil.which(compiler) is None:
            pytest.skip(f"no {command} beside {mpi.launcher}, or no {compiler}")
        program = folder / "".join([source, "-", command, *options])
        if not program.exists():
            strict = ["-Wall", "-Wextra", "-Werror", "-lpthread"] if source.endswith(".c") else []
            words = [found, "-O1", "-o", str(program), str(SOURCES / source), *strict, *options]
            subprocess.run(words, check=True)
        return str(program)

    return compile_one


def run(
    ranks: int, *program: str, preloads: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    option = ["--preload"] if preloads else []
    command = [sys.executable, "-m", "gradred", "run", *option, "-np", str(ranks), *program]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)


def profile_rows(folder: Path, rank: int = 0) -> dict[str, int]:
    """The number of calls that gradred has carried out, by kind."""
    record = json.loads((folder / f"p.{rank}.json").read_text())
    found: dict[str, int] = {}
    for row in record["rows"]:
        found[row["kind"]] = found.get(row["kind"], 0) + row["calls"]
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_kind_of_call_is_exact_and_gradreds(
    compiled: Compile, ranks: int, tmp_path: Path
) -> None:
    done = run(ranks, compiled("calls.c"), GRADRED_PROFILE=str(tmp_path / "p.json"))
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"rank \d of \d: \d+ checks passed", done.stdout)) == ranks
    if ranks > 1:
        calls = profile_rows(tmp_path)
        kinds = ("allreduce", "reduce_scatter_block", "allgather", "bcast", "scan", "exscan")
        assert {kind: calls[kind] > 20 for kind in kinds} == dict.fromkeys(kinds, True)


@pytest.mark.parametrize("knobs", [{"shm": "0"}, {"plan": "mpi"}, {"plan": "ring", "shm": "0"}])
def test_calls_are_exact_whatever_the_settings(compiled: Compile, knobs: dict[str, str]) -> None:
    variables = {f"GRADRED_{name.upper()}": value for name, value in knobs.items()}
    done = run(2, compiled("calls.c"), **variables)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    "case",
    [
        *("use_world", "no_memory_where_none_is_needed", "send_before", "many_communicators"),
        *("between_groups", "child_process", "threads", "finalize_with_others"),
        *("started_among_others", "start_is_local", "no_elements", "types_with_addresses"),
        *("call_in_finalize", "sessions"),
    ],
)
def test_what_programs_do_beside_plain_calls_works(compiled: Compile, case: str) -> None:
    done = run(2, compiled("cases.c"), case)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checks passed") == 2
    assert done.stderr == ""


@pytest.mark.parametrize(
    "case", ["wrong_arguments", "wrong_operation_of_truths", "wrong_type_on_a_copy"]
)
def test_wrong_arguments_are_the_mpis_to_report(compiled: Compile, case: str) -> None:
    alone = run(2, compiled("cases.c"), case, preloads=False)
    if alone.returncode != 0:
        pytest.skip("this MPI does not check arguments")
    done = run(2, compiled("cases.c"), case)
    assert done.returncode == 0, done.stderr


def test_programs_that_have_only_sessions_work(compiled: Compile) -> None:
    alone = run(2, compiled("cases.c"), "only_sessions", preloads=False)
    if alone.returncode != 0:
        pytest.skip("this MPI fails without MPI_Init")
    done = run(2, compiled("cases.c"), "only_sessions")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checks passed") == 2
    assert done.stderr == ""


DISAGREE = "gradred: UsageError: the ranks disagree about a collective call: rank 0 asked for "
DISAGREE += "allreduce of 4 float64 with sum, rank 1 for allreduce of 5"


def test_ranks_that_disagree_get_a_code_with_the_text_and_go_on(compiled: Compile) -> None:
    done = run(2, compiled("cases.c"), "disagree")
    assert done.returncode == 0, done.stderr
    assert DISAGREE in done.stdout
    assert done.stderr == ""


def test_handler_of_the_program_gets_the_error(compiled: Compile) -> None:
    done = run(2, compiled("cases.c"), "disagree_with_handler")
    assert done.returncode == 0, done.stderr
    assert DISAGREE in done.stderr


def test_handler_of_the_program_may_throw(compiled: Compile) -> None:
    done = run(2, compiled("throws.cc", "mpicxx", "c++"))
    assert done.returncode == 0, done.stderr
    assert "caught " + DISAGREE in done.stdout


def test_errors_that_are_fatal_end_the_job_with_the_text(compiled: Compile) -> None:
    done = run(2, compiled("cases.c"), "disagree_fatally")
    assert done.returncode != 0
    assert DISAGREE in done.stderr


def test_killed_rank_is_an_error_in_time(compiled: Compile) -> None:
    done = run(2, compiled("cases.c"), "kill_one")
    assert "gradred: PeerLost: rank 1 " in done.stdout, done.stderr
    assert done.returncode == 128 + 6


def test_late_rank_is_reported_and_given_up(compiled: Compile) -> None:
    knobs = {"GRADRED_TIMEOUT": "1s", "GRADRED_WARN_AFTER": "300ms"}
    done = run(2, compiled("cases.c"), "come_late", **knobs)
    waited = re.search(r"gradred: TimeoutError: rank 0 has waited ([\d.]+) s", done.stdout)
    assert waited is not None, done.stderr
    assert 0.9 < float(waited[1]) < within(1.9)
    assert re.search(r"gradred: rank 0 has waited 0\.\d s .*missing: rank 1 ", done.stderr)


def test_program_may_end_without_mpi_finalize(compiled: Compile) -> None:
    """The status is that of the same program without gradred: Open MPI objects."""
    alone = run(2, compiled("cases.c"), "end_at_once", preloads=False)
    done = run(2, compiled("cases.c"), "end_at_once")
    assert done.returncode == alone.returncode, done.stderr
    assert done.stdout.count("checks passed") == 2


def test_program_with_the_address_sanitizer_finds_nothing(compiled: Compile) -> None:
    """Its library has to be in the program, because ours is loaded before all others."""
    options = ["-g", "-fsanitize=address", "-static-libasan"]
    try:
        program = compiled("calls.c", "mpicc", "cc", *options)
    except subprocess.CalledProcessError:
        pytest.skip("the compiler has no address sanitizer to link statically")
    done = run(2, program, ASAN_OPTIONS="detect_leaks=0")  # the MPI's own
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checks passed") == 2
    assert done.stderr == ""


def test_wrong_setting_on_one_rank_leaves_all_calls_to_the_mpi(compiled: Compile) -> None:
    rank = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
    script = f'if [ "{rank}" = 1 ]; then export GRADRED_SLICE=2; fi; exec "$0" "$@"'
    done = run(2, "sh", "-c", script, compiled("cases.c"), "many_communicators")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "gradred: GRADRED_SLICE: there is no such setting. The nearest one is GRADRED_SLICES. "
        "The MPI carries out all calls of this program"
    ]


def test_profile_without_calls_names_each_rank(compiled: Compile, tmp_path: Path) -> None:
    done = run(2, compiled("cases.c"), "no_call", GRADRED_PROFILE=str(tmp_path / "p.json"))
    assert done.returncode == 0, done.stderr
    assert "gradred profile of rank 0 of 2" in done.stderr
    assert done.stderr.count("gradred profile") == 1
    assert [profile_rows(tmp_path, rank) for rank in range(2)] == [{}, {}]


def test_metrics_that_need_python_are_said_to_be_missing(compiled: Compile) -> None:
    done = run(2, compiled("cases.c"), "use_world", GRADRED_METRICS=":9400")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("GRADRED_METRICS needs Python") == 2


@pytest.mark.parametrize("way", ["deep", "plain"])
def test_mpi_that_is_out_of_reach_is_said_once(compiled: Compile, way: str, tmp_path: Path) -> None:
    plugin = compiled("plugin.c", "mpicc", "cc", "-shared", "-fPIC")
    program = compiled("opens_plugin.c")
    done = run(2, program, plugin, way, GRADRED_PROFILE=str(tmp_path / "p.json"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checks passed") == 2
    if way == "deep":
        assert done.stderr.startswith("gradred: No call of this program came to libgradred_mpi.so")
        assert done.stderr.count("\n") == 1
    else:
        assert profile_rows(tmp_path) == {"allreduce": 9}


PYTHON = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
ones = np.ones(1000)
total = np.empty_like(ones)
for _ in range(10):
    comm.Allreduce(ones, total)
assert (total == comm.size).all()
comm.Iallreduce(ones, total).Wait()
assert comm.bcast({"a": comm.rank}) == {"a": 0}
assert comm.allgather(comm.rank) == list(range(comm.size))
"""


def test_mpi4pys_calls_are_gradreds(tmp_path: Path) -> None:
    done = run(2, "python", "-c", PYTHON, GRADRED_PROFILE=str(tmp_path / "p.json"))
    assert done.returncode == 0, done.stderr
    calls = profile_rows(tmp_path)
    assert calls["allreduce"] == 11
    assert calls["bcast"] >= 1
    assert calls["allgather"] >= 1


WITH_GRADRED = """
import numpy as np
from mpi4py import MPI
import gradred
comm = MPI.COMM_WORLD
ones = np.ones(1000)
assert (gradred.allreduce(ones) == comm.size).all()
for _ in range(10):
    comm.Allreduce(MPI.IN_PLACE, ones)
assert (ones == comm.size ** 10).all()
copy = comm.Dup()
assert [copy.allreduce(1) for _ in range(8)] == [comm.size] * 8
"""


def test_program_that_imports_gradred_has_one_core(tmp_path: Path) -> None:
    """The profile has its own call and no others: the preloaded library leaves them to the MPI."""
    done = run(2, "python", "-c", WITH_GRADRED, GRADRED_PROFILE=str(tmp_path / "p.json"))
    assert done.returncode == 0, done.stderr
    assert profile_rows(tmp_path) == {"allreduce": 1}


def test_all_names_of_fortran_are_there(compiled: Compile, tmp_path: Path) -> None:
    """The packages of both MPIs have no Fortran, so the calls go no further than to gradred."""
    program = compiled("fortran_names.c")
    done = run(2, program, GRADRED_PROFILE=str(tmp_path / "p.json"))
    assert done.returncode == 0, done.stderr
    assert profile_rows(tmp_path) == {"allreduce": 6, "bcast": 1}


@pytest.mark.parametrize("source", ["old.f", "modern.f90"])
def test_fortran_programs_get_gradreds_calls(
    compiled: Compile, source: str, tmp_path: Path
) -> None:
    program = compiled(source, "mpifort", "gfortran")
    done = run(2, program, GRADRED_PROFILE=str(tmp_path / "p.json"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all checks passed") == 2
    assert profile_rows(tmp_path)["allreduce"] == 30


def test_program_of_the_standard_abi_gets_gradreds_calls(compiled: Compile, tmp_path: Path) -> None:
    program = compiled("calls.c", "mpicc_abi")
    done = run(2, program, GRADRED_PROFILE=str(tmp_path / "p.json"))
    assert done.returncode == 0, done.stderr
    assert profile_rows(tmp_path)["allreduce"] > 20


@pytest.mark.skipif(os.geteuid() != 0, reason="simulated hosts need root")
def test_calls_between_hosts_are_the_mpis_unless_it_was_measured(
    compiled: Compile, tmp_path: Path
) -> None:
    faked_by = [sys.executable, faked.__file__]
    knobs = {"GRADRED_TUNE": "0", "GRADRED_PROFILE": str(tmp_path / "p.json")}
    done = run(2, *faked_by, compiled("calls.c"), TEST_HOSTS="0,1", **knobs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checks passed") == 2
    assert profile_rows(tmp_path) == {}


def status_and_text(program: str, **variables: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "gradred", "doctor", "--preload", program]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_doctor_names_the_calls_that_gradred_would_have(compiled: Compile) -> None:
    status, text = status_and_text(compiled("plugin.c", "mpicc", "cc", "-shared", "-fPIC"))
    assert status == 1, text  # a library is no program: it names no dynamic linker
    status, text = status_and_text(compiled("contains_tool.c"))
    assert status == 0, text
    assert re.search(r"warn  preload .* uses libmpi\S+, of which it calls PMPI_Allreduce", text)
    status, text = status_and_text(compiled("fortran_names.c"))
    assert status == 0, text
    assert re.search(
        r"ok    preload .* uses libmpi\S+; gradred has its calls MPI_ALLREDUCE, ", text
    )


def test_doctor_does_not_run_the_program(compiled: Compile) -> None:
    _, text = status_and_text(compiled("cases.c"))
    assert "there is no case" not in text
    assert "MPI_Iallreduce" in text


def test_program_that_contains_its_mpi_is_said_to_get_nothing(compiled: Compile) -> None:
    program = compiled("contains_mpi.c")
    status, text = status_and_text(program)
    assert (status, "contains its MPI" in text) == (1, True)
    done = run(1, program)
    assert done.returncode == 0
    line = f"gradred run --preload: {program} contains its MPI. The MPI carries out all its calls\n"
    assert done.stderr == line


@pytest.mark.skipif(shutil.which("cc") is None, reason="no cc")
def test_static_program_is_said_to_get_nothing(tmp_path: Path) -> None:
    program = str(tmp_path / "static")
    command = ["cc", "-static", "-o", program, str(SOURCES / "contains_mpi.c")]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("no static library of C")
    status, text = status_and_text(program)
    assert (status, "is linked statically" in text) == (1, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="another owner needs root")
def test_setuid_program_is_said_to_get_nothing(compiled: Compile, tmp_path: Path) -> None:
    program = shutil.copy(compiled("cases.c"), tmp_path / "privileged")
    os.chown(program, 1, 1)
    os.chmod(program, 0o4755)
    status, text = status_and_text(str(program))
    assert (status, "setuid" in text) == (1, True)
    os.chmod(program, 0o755)
    assert status_and_text(str(program))[0] == 0


def test_scripts_are_judged_by_interpreter_and_text(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{sys.executable}\nprint()\n")
    script.chmod(0o755)
    status, text = status_and_text(str(script))
    assert (status, "has no MPI at its start" in text) == (0, True)
    script.write_text(script.read_text() + "ctypes.CDLL(path, os.RTLD_DEEPBIND)\n")
    status, text = status_and_text(str(script))
    assert (status, "names RTLD_DEEPBIND" in text) == (1, True)
    status, text = status_and_text(str(tmp_path / "nothing"))
    assert (status, "there is no such program" in text) == (2, True)


def test_library_precedes_what_the_user_loads() -> None:
    variables = {"LD_PRELOAD": "/lib/tool.so"}
    preload.add_to(variables)
    assert variables == {"LD_PRELOAD": f"{preload.library()}:/lib/tool.so"}
