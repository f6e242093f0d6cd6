"""Several programs in one job, which `:` separates: their ranks, words, folders, and failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradred import launch
from gradred.cli import main

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]
HOST = os.uname().nodename


def run(*words: str, **variables: str) -> tuple[list[str], list[str], int]:
    """A job that has ended: its stdout, its stderr and its status."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    command = [sys.executable, "-m", "gradred", "run", "--timeout", "40", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment)
    return done.stdout.splitlines(), done.stderr.splitlines(), done.returncode


COUPLED = """
import json, os, sys
import numpy as np
from mpi4py import MPI
import gradred

world = gradred.Comm(MPI.COMM_WORLD)
part = world.Split(MPI.COMM_WORLD.Get_attr(MPI.APPNUM), world.rank)
if sys.argv[1] == "ice":
    part.Dup().Allreduce(MPI.IN_PLACE, np.ones(5))
sums = [np.full(1000, world.rank + 1.0) for _ in range(2)]
for comm, x in zip((part, world), sums):
    comm.Allreduce(MPI.IN_PLACE, x)
print(json.dumps({
    "words": sys.argv[1:], "rank": world.rank, "program": MPI.COMM_WORLD.Get_attr(MPI.APPNUM),
    "sums": [x[0] for x in sums], "folder": os.getcwd(), "threads": os.environ["OMP_NUM_THREADS"],
    "path": os.environ.get("PYTHONPATH", "").split(":")[0],
    **{name: os.environ.get(name) for name in ("BOTH", "ICE")},
}))
"""


@pytest.fixture
def coupled(tmp_path: Path) -> str:
    path = tmp_path / "coupled.py"
    path.write_text(COUPLED)
    return str(path)


def reports(lines: list[str]) -> list[dict[str, object]]:
    return sorted((json.loads(line) for line in lines), key=lambda found: int(found["rank"]))


def test_each_program_has_its_ranks_words_variables_and_folder(
    coupled: str, tmp_path: Path
) -> None:
    (tmp_path / "ice").mkdir()
    (tmp_path / "ice" / "here.py").write_text(COUPLED)
    words = ["-np", "1", "-x", "BOTH=1", coupled, "ocean", "2"]
    more = ["-np", "2", "-x", "ICE=2", "--wdir", str(tmp_path / "ice"), "here.py", "ice"]
    out, err, status = run(*words, ":", *more)
    assert status == 0, err
    found = reports(out)
    assert [one["words"] for one in found] == [["ocean", "2"], ["ice"], ["ice"]]
    assert [one["program"] for one in found] == [0, 1, 1]
    assert [one["sums"] for one in found] == [[1.0, 6.0], [5.0, 6.0], [5.0, 6.0]]
    assert [one["BOTH"] for one in found] == ["1", "1", "1"]
    assert [one["ICE"] for one in found] == [None, "2", "2"]
    folders = [os.getcwd(), *[str(tmp_path / "ice")] * 2]
    assert [one["folder"] for one in found] == folders
    own = max(1, len(os.sched_getaffinity(0)) // 3)
    assert {one["threads"] for one in found} == {str(own)}  # they share the host's cores


@pytest.mark.parametrize("bind", ["core", "numa"])
def test_ranks_of_all_programs_are_bound_even_if_they_exceed_the_cores(bind: str) -> None:
    cores = len(os.sched_getaffinity(0))
    show = ["python", "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    out, err, status = run(
        *("--bind", bind, "-np", "1", *show, ":", "-np", str(cores), *show, ":", "-np", "1", *show)
    )
    assert status == 0, err
    assert len(out) == cores + 2
    if bind == "core":
        assert max(map(int, out)) < max(2, cores)


def test_horovod_is_found_by_every_program(coupled: str) -> None:
    own = ["-x", "PYTHONPATH=/own:" + os.pathsep.join(filter(None, sys.path))]
    out, err, status = run("--horovod", "-np", "1", coupled, "a", ":", "-np", "1", *own, coupled)
    assert status != 0  # the second program has no word
    assert any("IndexError" in line for line in err)
    out, err, status = run(
        "--horovod", "-np", "1", coupled, "a", ":", "-np", "1", *own, coupled, "b"
    )
    assert status == 0, err
    assert all("horovod" in str(one["path"]) for one in reports(out))


def test_last_lines_name_the_program_that_failed() -> None:
    late = ["sh", "-c", "sleep 0.3; exit 5"]
    out, err, status = run(
        "-np", "1", "sleep", "30", ":", "-np", "2", "--", "sh", "-c", ": a; exit 4"
    )
    assert (out, status) == ([], 4)
    assert err[0] == "gradred run: rank 0 did not end within 5 s: ended"
    assert err[-1] in [
        f"gradred run: rank {rank} on {HOST} (sh -c ': a; exit 4') exited with status 4"
        for rank in (1, 2)
    ]
    _, err, status = run("-np", "1", "sh", "-c", "exit 4", ":", "-np", "1", *late)
    assert status == 4
    assert err == [
        f"gradred run: rank 1 on {HOST} (sh -c 'sleep 0.3; exit 5') exited with status 5",
        f"gradred run: rank 0 on {HOST} (sh -c 'exit 4') exited with status 4",
    ]


def test_colon_behind_two_dashes_is_a_word_of_the_program() -> None:
    first, second = ["--", "echo", ":", "-np", "2"], ["-np", "1", "--", "echo", ":"]
    assert run("-np", "1", *first) == ([": -np 2"], [], 0)
    out, err, status = run("-np", "1", "echo", "one", ":", *second)
    assert (sorted(out), status) == ([":", "one"], 0), err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("-np 1 echo a : echo b", "echo b: the number of its ranks is missing"),
        ("echo a : -np 1 echo b", "echo a: the number of its ranks is missing"),
        ("-np 1 echo a :", "there is nothing to start"),
        ("-np 1 : -np 1 echo b", "there is nothing to start"),
        ("-np 1 echo a : -np 1 -H h1 echo b", "-H behind ':'"),
        ("-np 1 echo a : --horovod -np 1 echo b", "--horovod behind ':'"),
        ("-np 1 echo a : -np two echo b", "'two' is not a number of ranks"),
        ("-np 1 echo a : -np 1 no-such-program", "no-such-program: there is no such program"),
        ("-np 1 echo a : -np 1 -x NO_SUCH echo b", "-x NO_SUCH"),
        ("-np 1 echo a : -np 1 -x GRADRED_TIMEOUT=soon echo b", "GRADRED_TIMEOUT"),
        ("-np 1 --wdir /no/such echo a : -np 1 --wdir /no/such ./echo", "./echo: there is no"),
        ("-np 1 --min-np 1 echo a : -np 1 echo b", "an elastic job"),
        ("-H localhost:2 -np 1 echo a : -np 2 echo b", "3 ranks on -H localhost:2"),
    ],
)
def test_what_is_no_list_of_programs_starts_none(
    words: str, error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words.split()]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert error in err
    assert len(err.splitlines()) == 1


def test_commands_of_all_programs_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["-np", "1", "echo", "a", ":", "-np", "3", "echo", "b"]
    assert main(["run", "--dry-run", *words]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[1:] == ["rank 0: echo a", "ranks 1-3: echo b"]
    assert " : -n 3 " in lines[0]


def test_options_that_mpiexec_takes_by_program_hold_for_all() -> None:
    """Such as variables of MPICH's, and Open MPI's hosts."""
    is_open_mpi = launch.find_mpi().family == "Open MPI"
    option = "--host localhost:2" if is_open_mpi else "-env GIVEN 1"
    program = ["-np", "1", "sh", "-c", "echo GIVEN=$GIVEN"]
    out, err, status = run(f"--mpi-option={option}", *program, ":", *program)
    assert status == 0, err
    assert out == ["GIVEN=" if is_open_mpi else "GIVEN=1"] * 2
