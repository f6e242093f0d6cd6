"""Programs started by the launcher of another MPI, and programs that only look so."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradred import config, launch
from gradred.launch import mpi as launch_mpi
from gradred.launch import wrong_launcher
from gradred.launch.wrong_launcher import MPICH, OPEN_MPI, SLURM, WITHOUT_MPI, Launcher

pytest.importorskip("mpi4py")
pytestmark = pytest.mark.one_mpi

COMMUNICATE = """
import numpy as np
from mpi4py import MPI
import gradred

x = np.ones(3)
gradred.allreduce(x, comm=MPI.COMM_SELF)  # one rank, whoever started it
world = gradred.Comm(MPI.COMM_WORLD)
calls = {
    "plain Allreduce": lambda: world.Allreduce(x, np.empty(3)),
    "Allreduce by name": lambda: world.Allreduce(x, np.empty(3), op="avg"),
    "Iallreduce": lambda: world.Iallreduce(x, np.empty(3)).Wait(),
    "Allreduce_init": lambda: world.Allreduce_init(x, np.empty(3))(),
    "Allgather": lambda: world.Allgather(x, np.empty(3)),
    "Bcast": lambda: world.Bcast(x),
    "a copy": lambda: world.Dup().Allreduce(x, np.empty(3)),
    "allreduce": lambda: gradred.allreduce(x),
    "allreduce_many": lambda: gradred.allreduce_many([x, x]),
    "a plain communicator": lambda: gradred.allreduce(x, comm=MPI.COMM_WORLD),
}
for name, call in calls.items():
    try:
        call()
        print(f"{name}: done", flush=True)
    except gradred.UsageError as error:
        print(f"{name}: {error}", flush=True)
"""
CALLS = 10


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of launchers: these tests set them."""
    for launcher in (
        *(OPEN_MPI, MPICH, SLURM),
        *WITHOUT_MPI,
    ):
        for name in (launcher.rank, launcher.size, *launcher.also):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    monkeypatch.delenv(config.variable("allow_singleton"), raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


def foreign() -> Launcher:
    """The launcher whose variables this Python's MPI ignores."""
    own = launch.find_mpi().family
    return MPICH if own == "Open MPI" else OPEN_MPI


def started_by(launcher: Launcher, size: int = 2, **more: str) -> dict[str, str]:
    also = dict.fromkeys(launcher.also, "1")
    return {**os.environ, launcher.rank: "0", launcher.size: str(size), **also, **more}


def run(program: str, environment: dict[str, str], *prefix: str) -> list[str]:
    """The lines that a Python program printed; asserts that it succeeds."""
    command = [*prefix, sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def is_done(lines: list[str]) -> bool:
    """Whether every call was carried out; otherwise asserts that every one was refused."""
    assert len(lines) == CALLS
    done = sum(line.endswith(": done") for line in lines)
    assert done in (0, CALLS), lines
    return done == CALLS


@pytest.mark.each_mpi
def test_every_first_communication_names_both_mpis_and_the_right_command() -> None:
    lines = run(COMMUNICATE, started_by(foreign()))
    assert not is_done(lines)
    mpi = launch.find_mpi()
    for line in lines:
        assert foreign().name in line
        assert f"{mpi.family} {mpi.version}" in line
        assert "gradred run -np 2" in line
        assert str(mpi.launcher) in line
        assert "GRADRED_ALLOW_SINGLETON=1" in line


def test_knob_allows_ranks_that_are_alone() -> None:
    assert is_done(run(COMMUNICATE, started_by(foreign(), GRADRED_ALLOW_SINGLETON="1")))


def bench(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradred", "bench", "-m", "8:8"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)


@pytest.mark.each_mpi
def test_bench_below_the_wrong_mpiexec_names_both_mpis_and_the_right_command() -> None:
    done = bench(started_by(foreign()))
    assert done.returncode == 2
    mpi = launch.find_mpi()
    assert foreign().name in done.stderr
    assert f"{mpi.family} {mpi.version}" in done.stderr
    right = f"gradred run -np 2 {shlex.quote(sys.executable)} -m gradred bench -m 8:8"
    assert right in done.stderr


def test_bench_of_a_singleton_says_that_it_is_alone() -> None:
    done = bench(dict(os.environ))
    assert done.returncode == 2
    assert "gradred bench -np 2" in done.stderr


@pytest.mark.each_mpi
@pytest.mark.parametrize("size", [None, 1])
def test_singletons_are_no_mistake(size: int | None) -> None:
    environment = dict(os.environ) if size is None else started_by(foreign(), size)
    assert is_done(run(COMMUNICATE, environment))


def test_step_that_srun_started_is_a_mistake_and_the_message_says_so() -> None:
    lines = run(COMMUNICATE, started_by(SLURM, 4, SLURM_STEP_ID="0"))
    assert not is_done(lines)
    assert all("rank 0 of 4" in line and "srun --mpi=list" in line for line in lines)


@pytest.mark.parametrize("step", ["4294967291", "4294967292", "4294967290", "batch", "extern"])
def test_slurm_steps_without_ranks_are_no_mistake(step: str) -> None:
    environment = started_by(SLURM, 4, SLURM_STEP_ID=step, SLURM_NTASKS="4")
    assert wrong_launcher.starts(environment) == []


def test_shell_of_sbatch_is_no_mistake() -> None:
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    assert is_done(run(COMMUNICATE, environment))


def test_mpiexec_speaks_before_the_srun_that_started_its_helpers() -> None:
    environment = started_by(OPEN_MPI, 1) | started_by(SLURM, 2, SLURM_STEP_ID="0")
    assert [start.size for start in wrong_launcher.starts(environment)] == [1]


RANK_WITH_A_CHILD = """
import subprocess, sys
{first}
child = [sys.executable, "-c", {program!r}]
print(subprocess.run(child, capture_output=True, text=True, check=True).stdout, end="")
"""


def test_child_of_a_rank_is_not_taken_for_one() -> None:
    rank = RANK_WITH_A_CHILD.format(first="from mpi4py import MPI", program=COMMUNICATE)
    assert is_done(run(rank, started_by(foreign())))


def test_rank_started_through_another_program_is_taken_for_one(tmp_path: Path) -> None:
    wrapper = RANK_WITH_A_CHILD.format(first="", program=COMMUNICATE)
    assert not is_done(run(wrapper, started_by(foreign())))
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\n"$@"\nexit $?\n')
    shell.chmod(0o755)
    assert not is_done(run(COMMUNICATE, started_by(foreign()), str(shell), str(shell)))


every_launcher_without_mpi = pytest.mark.parametrize(
    "launcher",
    WITHOUT_MPI,
    ids=[one.name.split()[-1] for one in WITHOUT_MPI],
)


@every_launcher_without_mpi
def test_launcher_that_no_mpi_listens_to_is_named_with_the_right_command(
    launcher: Launcher,
) -> None:
    lines = run(COMMUNICATE, started_by(launcher))
    assert not is_done(lines)
    mpi = launch.find_mpi()
    for line in lines:
        assert f"rank 0 of 2: {launcher.name} started them" in line
        assert f"{mpi.family} {mpi.version}" in line
        assert "gradred run -np 2" in line
        assert str(mpi.launcher) in line
        assert "GRADRED_ALLOW_SINGLETON=1" in line


@every_launcher_without_mpi
def test_knob_and_a_size_of_one_allow_them(launcher: Launcher) -> None:
    assert is_done(run(COMMUNICATE, started_by(launcher, GRADRED_ALLOW_SINGLETON="1")))
    assert is_done(run(COMMUNICATE, started_by(launcher, size=1)))


@every_launcher_without_mpi
def test_rank_and_size_alone_are_anybodys(launcher: Launcher) -> None:
    environment = started_by(launcher)
    for name in launcher.also:
        del environment[name]
    assert wrong_launcher.start_without_mpi(environment) is None


@every_launcher_without_mpi
def test_child_of_their_rank_is_not_taken_for_one_and_a_shell_is_no_rank(
    launcher: Launcher, tmp_path: Path
) -> None:
    rank = RANK_WITH_A_CHILD.format(first="", program=COMMUNICATE)
    assert is_done(run(rank, started_by(launcher)))
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\n"$@"\nexit $?\n')
    shell.chmod(0o755)
    assert not is_done(run(COMMUNICATE, started_by(launcher), str(shell)))


def test_launcher_started_by_another_is_the_one_that_is_named() -> None:
    """As in `srun torchrun`: srun's variables are also set in torchrun's agent."""
    by_srun = started_by(SLURM, 2, SLURM_STEP_ID="0")
    torchrun = WITHOUT_MPI[0]
    started = {
        name: started_by(torchrun, 4)[name] for name in ("RANK", "WORLD_SIZE", *torchrun.also)
    }
    agent = f"import os; os.environ.update({started!r})\n"
    lines = run(agent + RANK_WITH_A_CHILD.format(first="", program=COMMUNICATE), by_srun)
    assert not is_done(lines)
    assert all("rank 0 of 4: torchrun" in line for line in lines)


@pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks")
def test_rank_of_torchrun_starts_jobs_of_its_own() -> None:
    assert run(TWO_RANKS, started_by(WITHOUT_MPI[0])) == ["[array([2.]), array([2.])]"]
    one = TWO_RANKS.replace("np=2", "np=1")
    assert run(one, started_by(WITHOUT_MPI[0])) == ["[array([1.])]"]


TWO_RANKS = """
import numpy
from mpi4py import MPI
import gradred

print(gradred.run(gradred.allreduce, (numpy.ones(1),), np=2, timeout=30))
"""


@pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks")
def test_shell_that_srun_has_made_the_only_rank_starts_jobs() -> None:
    shell = started_by(SLURM, 1, SLURM_STEP_ID="0", PMI_RANK="0", PMI_SIZE="1")
    assert run(TWO_RANKS, shell) == ["[array([2.]), array([2.])]"]


def foreign_mpiexec() -> str:
    """An mpiexec of an MPI that is not this Python's; skips where there is none."""
    names = [os.environ.get("FOREIGN_MPIEXEC", ""), "mpiexec.openmpi", "mpiexec.mpich", "mpiexec"]
    for path in filter(None, map(shutil.which, filter(None, names))):
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
        if launch_mpi.identify(said.stdout)[0] != launch.find_mpi().family:
            return path
    pytest.skip("no mpiexec of another MPI in PATH or FOREIGN_MPIEXEC")


@pytest.mark.each_mpi
def test_ranks_of_a_real_foreign_mpiexec_get_the_error_with_its_path(tmp_path: Path) -> None:
    mpiexec = foreign_mpiexec()
    program = tmp_path / "program.py"
    program.write_text("import gradred, numpy\ngradred.allreduce(numpy.ones(3))\n")
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    command = [mpiexec, "-n", "2", sys.executable, str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    assert done.returncode != 0
    mpi = launch.find_mpi()
    if "unsupported PMI version" in done.stderr:
        return  # MPICH 5 detects Open MPI's mpiexec itself, and ends in MPI_Init
    errors = [line for line in done.stderr.splitlines() if "gradred.errors.UsageError" in line]
    assert errors, done.stderr
    for line in errors:
        assert f"{mpi.family} {mpi.version}" in line
        assert foreign().name in line
        assert str(Path(mpiexec).resolve().parent) in line
        assert "gradred run -np 2 " + shlex.join([sys.executable, str(program)]) in line
