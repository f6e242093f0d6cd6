"""Detect ranks that each run alone because their launcher does not belong to their MPI.

The launcher belongs to another MPI, or to none, as torchrun does.

Such a rank differs from a program that is meant to run alone in two ways. The launcher's variables
say that it started several ranks. No ancestor of this process is the rank for which they were set,
since a rank's children inherit its environment.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
from collections.abc import Mapping

import mpi4py

from gradred import _core, config
from gradred.errors import UsageError, explain
from gradred.launch import proc, rank_pipe, variables

_LONGEST_PROGRAM = 400


@dataclasses.dataclass(frozen=True)
class Launcher:
    """A kind of launcher, and the variables by which a rank recognises it."""

    name: str
    rank: str
    """The variable with the rank's number."""
    size: str
    """The variable with the number of ranks."""
    family: str | None
    """The MPI that it belongs to, by gradred's name; None if it starts several MPIs or none."""
    also: tuple[str, ...] = ()
    """Other variables that it sets; without them, `rank` and `size` may be another program's."""


OPEN_MPI = Launcher("the mpiexec of Open MPI", *variables.OPEN_MPI_RANK, "Open MPI")
MPICH = Launcher("the mpiexec of MPICH (or Intel MPI)", *variables.PMI_RANK, "MPICH")
SLURM = Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", None)

_ENV = ("RANK", "WORLD_SIZE")

# Launchers whose variables no MPI reads, the most specific first.
WITHOUT_MPI = (
    Launcher("torchrun", *_ENV, None, also=("TORCHELASTIC_RUN_ID",)),
    Launcher(
        "a launcher of torch.distributed (deepspeed, accelerate, Ray Train or the like)",
        *_ENV,
        None,
        also=("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
    ),
    Launcher("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", None, also=("HOROVOD_LOCAL_RANK",)),
)


@dataclasses.dataclass(frozen=True)
class Start:
    """The rank and size that a launcher has set for one process."""

    launcher: Launcher
    rank: int
    size: int


def starts(environment: Mapping[str, str]) -> list[Start]:
    """Return the starts in a process's environment; Slurm's only if no mpiexec has one.

    An mpiexec may use srun to start its own helpers, one per host; the ranks inherit its variables.
    """
    by_mpiexec = [_start_by(launcher, environment) for launcher in (OPEN_MPI, MPICH)]
    found = [start for start in by_mpiexec if start is not None]
    by_slurm = _start_by(SLURM, environment)
    return found or ([] if by_slurm is None else [by_slurm])


def start_without_mpi(environment: Mapping[str, str]) -> Start | None:
    """Return the start by a launcher of WITHOUT_MPI; None if there is none."""
    found = (_start_by(launcher, environment) for launcher in WITHOUT_MPI)
    return next((start for start in found if start is not None), None)


def is_rank_of_mpi() -> bool:
    """Return whether an MPI's launcher started this process, and not a launcher inside of it."""
    own = [start for start in starts(os.environ) if not inherited(start, os.getppid())]
    if not own or rank_pipe.VARIABLE in os.environ:
        return bool(own)
    beside = start_without_mpi(os.environ)
    return beside is None or not _is_innermost(beside, own)


def refuse_wrong_launcher() -> None:
    """Raise UsageError if this process, alone in its COMM_WORLD, should be one of several ranks.

    Checks once per process; `GRADRED_ALLOW_SINGLETON=1` turns the check off.
    """
    mistake = _mistake()
    if mistake is not None and not config.get("allow_singleton"):
        raise UsageError(mistake)


@functools.cache
def _mistake() -> str | None:
    """Return the error for the user; None if nothing is wrong."""
    from mpi4py import MPI  # a program that communicates has loaded it already

    found = starts(os.environ)
    beside = start_without_mpi(os.environ)
    if not (found or beside) or MPI.COMM_WORLD.Get_size() > 1:
        return None
    if beside is not None and _is_innermost(beside, found):
        alone = beside.size == 1 or _is_of_ancestor(beside)
        return None if alone else _message(beside)
    if any(start.size == 1 and start.launcher.family == _core.mpi_family() for start in found):
        return None  # the program requested one rank of this MPI's own launcher in another job
    several = [start for start in found if start.size > 1]
    mistaken = [start for start in several if not inherited(start, os.getppid())]
    return _message(mistaken[0]) if mistaken else None


def _is_innermost(start: Start, others: list[Start]) -> bool:
    """Return whether the others started this launcher, as in `srun torchrun`, not the reverse."""
    parent = os.getppid()
    depth = len(_ancestors_with(start, parent))
    return all(depth < len(_ancestors_with(other, parent)) for other in others)


def _is_of_ancestor(start: Start) -> bool:
    """Return whether an ancestor is the rank of this start; such a rank need not use any MPI.

    An ancestor that runs Python counts as a rank. Others (a shell, numactl) may be between the rank
    and the launcher.
    """
    return any(_is_python(pid) for pid in _ancestors_with(start, os.getppid()))


def refuse_child() -> None:
    """Raise UsageError in a child process of a rank, which must not initialise MPI.

    There MPI_Init never returns, or ends the rank's job.
    """
    if not mpi4py.rc.initialize:  # the program initialises MPI itself, or does not use it
        return
    of = [start for start in starts(os.environ) if inherited(start, os.getppid())]
    if of and not config.get("allow_singleton"):
        raise UsageError(
            "communicating",
            f"this process is a child of rank {of[0].rank}, and only ranks communicate",
            "Do it in the rank, or start ranks of their own with gradred.run",
        )


def inherited(start: Start, parent: int) -> bool:
    """Return whether an ancestor is the rank of this start: one with an MPI library loaded.

    A process between the launcher and the rank (a shell, numactl) has no such library.
    """
    return any(_has_mpi(pid) for pid in _ancestors_with(start, parent))


def _start_by(launcher: Launcher, environment: Mapping[str, str]) -> Start | None:
    if not all(name in environment for name in launcher.also):
        return None
    found = variables.place_in((launcher.rank, launcher.size), environment)
    if launcher is SLURM and environment.get("SLURM_STEP_ID", "").lower() in variables.SLURM_SHELLS:
        return None
    return None if found is None else Start(launcher, *found)


def _ancestors_with(start: Start, pid: int) -> list[int]:
    """Return the process `pid` and its ancestors, up to the first without this start."""
    found: list[int] = []
    while pid > 0 and _start_by(start.launcher, _environment_of(pid)) == start:
        found.append(pid)
        pid = _parent_of(pid)
    return found


def _message(start: Start) -> str:
    import shlex  # imported here because most programs do not need it

    from gradred.launch.mpi import find_mpi

    program = shlex.join(sys.orig_argv)
    if len(program) > _LONGEST_PROGRAM or "\n" in program:
        program = "program"
    try:
        mpi = find_mpi()
        uses = str(mpi)
        remedy = f"Start them with: gradred run -np {start.size} {program}"
        remedy += f" (or {shlex.quote(str(mpi.launcher))} -n {start.size} {program})"
    except UsageError as error:  # this MPI has no launcher on this host
        uses = _core.mpi_version().splitlines()[0]
        remedy = str(error).removesuffix(".")
    executable = "" if start.launcher in WITHOUT_MPI else _launcher_of(start)
    by_srun = start.launcher is SLURM or "slurmstepd" in executable  # srun may use PMI too
    if by_srun:
        remedy = f"Use an MPI that srun can start (see srun --mpi=list). {remedy}"
    by = SLURM.name if by_srun else start.launcher.name
    if executable:
        by += f" ({executable})"
    found = f"{by} started them, but this Python uses {uses}, which sees a single rank"
    if start.launcher in WITHOUT_MPI:
        found = f"{by} started them, of which {uses} knows nothing: it sees a single rank"
    remedy += f". {config.variable('allow_singleton')}=1 lets each run alone"
    return explain(f"communicating as rank {start.rank} of {start.size}", found, remedy)


def _launcher_of(start: Start) -> str:
    """Return the launcher's program, the nearest ancestor without the start; empty if unknown."""
    parent = os.getppid()
    ranks = _ancestors_with(start, parent)
    pid = _parent_of(ranks[-1]) if ranks else parent
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:  # the launcher is in another container, or another user's
        return ""


def _environment_of(pid: int) -> dict[str, str]:
    """Return the initial environment of a process; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", errors="surrogateescape", newline="") as file:
            lines = file.read().split("\0")
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _has_mpi(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/maps", errors="surrogateescape") as file:
            return re.search(r"/libmpi(ch|_abi)?\.so", file.read()) is not None
    except OSError:
        return False


def _is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def _parent_of(pid: int) -> int:
    """Return the parent process; 0 if there is none, or it is not visible."""
    found = proc.stat(pid)
    return 0 if found is None else found.parent
