"""The MPI that mpi4py loads in this interpreter, its launcher, and the command that starts ranks.

Nothing here imports `mpi4py.MPI`: that would be MPI_Init in the launcher. A child process is asked
instead, with initialisation switched off.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from gradred._util import clock
from gradred.errors import INSTALL_MPI, UsageError, explain
from gradred.launch import protocol, proxy, variables
from gradred.launch.hosts import Host

Family = Literal["Open MPI", "MPICH", "Intel MPI"]
Binding = Literal["none", "core", "numa"]

_LAUNCHER_NAMES: dict[Family, tuple[str, ...]] = {
    "Open MPI": ("mpiexec.openmpi", "mpiexec", "mpirun"),
    "MPICH": ("mpiexec.mpich", "mpiexec.hydra", "mpiexec"),
    "Intel MPI": ("mpiexec.hydra", "mpiexec"),
}
# Options of any mpiexec that say where ranks run; both MPIs take most of them with one dash or two.
_PLACEMENT = {
    *("map-by", "rankmap", "rankfile", "rf", "ppn", "perhost", "npernode", "N"),
    *("H", "host", "hosts", "hostlist", "f", "hostfile", "machinefile"),
}
# What Python may need before the job reaches a rank, and the clock that tests step.
_TO_START = ("PATH", "LD_LIBRARY_PATH", clock.VARIABLE)
# What a batch system tells a job: an mpiexec that sees it goes to the hosts granted, and by the
# batch system's own way, whatever hosts its options name.
_OF_BATCH = (
    *("SLURM_", "PBS_", "LSB_", "LSF_", "SGE_", "PE_HOSTFILE", "COBALT_", "LOADL_"),
    # And what a site may tell mpiexec of that way.
    *("HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER", "HYDRA_RMK", "HYDRA_HOST_FILE", "I_MPI_HYDRA_"),
    *("PRTE_MCA_plm", "PRTE_MCA_ras", "OMPI_MCA_plm", "OMPI_MCA_ras"),
)

# Run in a child: mpi4py finds its libmpi here exactly as it would in a rank.
_PROBE = """
import json
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
with open("/proc/self/maps") as maps:
    files = {line.split(maxsplit=5)[5].strip() for line in maps if "/lib" in line}
print(json.dumps([MPI.Get_library_version(), sorted(files)]))
"""


@dataclasses.dataclass(frozen=True)
class Mpi:
    """An MPI installation: its library as mpi4py loads it, and the launcher that belongs to it."""

    family: Family
    version: str
    library: pathlib.Path
    launcher: pathlib.Path

    def __str__(self) -> str:
        return f"{self.family} {self.version} ({self.library})"


@functools.cache
def find_mpi() -> Mpi:
    """The MPI that mpi4py loads in this interpreter, and its launcher; asked once per process.

    Blocks for about 0.1 s, the time of a child process.

    Raises:
        UsageError: no mpi4py, no MPI, or no launcher of the same MPI; with the line that helps.
    """
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        reason = (probe.stderr.strip().splitlines() or ["no reason given"])[-1]
        found = f"mpi4py cannot load one ({reason})"
        raise UsageError(explain("no MPI found", found, INSTALL_MPI))
    text, files = json.loads(probe.stdout.splitlines()[-1])
    family, version = identify(text)
    library = _libmpi(files)
    return Mpi(family, version, library, _find_launcher(family, library))


def inside_job(environment: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """Rank and size if this process, or an ancestor, was started as a rank by mpiexec."""
    environment = os.environ if environment is None else environment
    told = (variables.told(names, environment) for names in variables.RANK_VARIABLES)
    return next((job for job in told if job is not None), None)


def refuse_inside_job(asked: str) -> None:
    """Raise UsageError in a rank: launchers of most MPIs cannot start jobs from there."""
    job = inside_job()
    if job is not None:
        found = f"this process already belongs to a job (rank {job[0]} of {job[1]})"
        raise UsageError(explain(asked, found, "Start it from a process that is not a rank"))


def job_environment(mpi: Mpi, binding: Binding = "none") -> dict[str, str]:
    """This process's environment as the ranks and mpiexec need it: `python` is this interpreter."""
    environment = dict(os.environ)
    here = os.path.dirname(sys.executable)
    environment["PATH"] = os.pathsep.join([here, *filter(None, [environment.get("PATH")])])
    if mpi.family == "Open MPI" and os.geteuid() == 0:
        environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
        environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    if mpi.family == "Intel MPI":
        environment.setdefault("I_MPI_PIN", "0" if binding == "none" else "1")
        if binding != "none":
            environment.setdefault("I_MPI_PIN_DOMAIN", binding)
    return environment


def without_allocation(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The variables for an mpiexec that is to stay on this host, and the others.

    Args:
        environment: of mpiexec. What it is not to see, its ranks are to get from elsewhere.
    """
    hidden = {name: text for name, text in environment.items() if name.startswith(_OF_BATCH)}
    return {name: text for name, text in environment.items() if name not in hidden}, hidden


def launcher_command(
    mpi: Mpi,
    ranks: int,
    *,
    hosts: Sequence[Host] = (),
    options: Sequence[str] = (),
    binding: Binding = "none",
) -> list[str]:
    """The launcher and its options; the program and its arguments are to follow.

    Args:
        mpi: whose launcher.
        ranks: how many.
        hosts: with the ranks that each one gets; none for this host.
        options: passed to the launcher as they are. With a placement among them (hosts, mapping)
            gradred adds none of its own.
        binding: of each rank to a core or memory node.

    The launcher takes to other hosts only the variables that a rank's start needs: the rest comes
    from the job itself, alike under every MPI.
    """
    names = [name for name in _TO_START if name in os.environ]
    command = [str(mpi.launcher)]
    placed = has_placement(options)
    if (hosts or placed) and mpi.family != "Open MPI":
        command += ["-genvlist", ",".join([protocol.JOB, *names])]
    command += ["-n", str(ranks)]
    if mpi.family == "Open MPI":
        if not placed:
            # Its slots are physical cores. With hosts, the qualifier would put every rank on the
            # first one; there each has exactly the slots that it needs.
            command += ["--map-by", "slot" if hosts else ":OVERSUBSCRIBE"]
        bound = {"core": "core:overload-allowed"}.get(binding, binding)
        command += ["--bind-to", bound]
        command += [word for name in names for word in ("-x", name)]
    elif mpi.family == "MPICH" and binding != "none":
        command += ["-bind-to", binding]
    return command + _host_options(mpi.family, hosts) + list(options)


def _host_options(family: Family, hosts: Sequence[Host]) -> list[str]:
    if not hosts:
        return []
    if family == "Open MPI":
        return ["--host", ",".join(map(str, hosts))]
    if family == "MPICH":
        return ["-hosts", ",".join(map(str, hosts))]
    if len({host.slots for host in hosts}) > 1:
        asked = f"{', '.join(map(str, hosts))} with Intel MPI"
        found = "its launcher takes the same number of ranks for every host"
        raise UsageError(explain(asked, found, "Give every host as many slots as the others"))
    names = ",".join(host.name for host in hosts)
    return ["-hosts", names, "-ppn", str(hosts[0].slots)]


def program_command(program: Sequence[str], path: str) -> list[str]:
    """A program and its arguments as the ranks run them; a `.py` file runs with this interpreter.

    Raises:
        UsageError: there is no such program or file.
    """
    name = program[0]
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise UsageError(explain(name, "there is no such file", "Give the program's path"))
        return [sys.executable, *program]
    if shutil.which(name, path=path) is None:
        found = "there is no such program, or it is not executable"
        raise UsageError(explain(name, found, "Give its path, or a name that is in PATH"))
    return list(program)


def proxy_command(family: Family | None = None) -> list[str]:
    """What mpiexec of a family starts for each rank; what that is to run, the job tells it."""
    package = os.path.dirname(os.path.dirname(proxy.__file__))
    carry = ["-x", protocol.JOB] if family == "Open MPI" else []
    return [*carry, sys.executable, "-I", "-S", "-c", proxy.BOOTSTRAP, package]


def has_placement(options: Sequence[str]) -> bool:
    """Whether options of mpiexec say where ranks run."""
    names = [option.partition("=")[0] for option in options]
    return any(name.startswith("-") and name.lstrip("-") in _PLACEMENT for name in names)


def identify(text: str) -> tuple[Family, str]:
    """Family and version in the text of MPI_Get_library_version or of `mpiexec --version`."""
    patterns: tuple[tuple[Family, str], ...] = (
        (
            "Intel MPI",
            r"Intel\(R\) MPI Library.*?[Vv]ersion\s*([\d.]+)|Intel\(R\) MPI Library ([\d.]+)",
        ),
        ("Open MPI", r"(?:Open MPI v|\(Open MPI\) |\(OpenRTE\) )([\w.]+)"),
        ("MPICH", r"(?:MPICH Version|HYDRA build details:\s*Version):\s*([\w.]+)"),
    )
    for family, pattern in patterns:
        match = re.search(pattern, text, re.DOTALL)
        if match is not None:
            return family, match[match.lastindex or 0]
    first = text.strip().splitlines()[0] if text.strip() else "an empty version text"
    found = f"it is none that gradred can start ranks with ({first})"
    raise UsageError(explain("the MPI of this interpreter", found, INSTALL_MPI))


def _libmpi(files: Sequence[str]) -> pathlib.Path:
    """The MPI library among the files a process has mapped."""
    for file in files:
        if re.fullmatch(r"libmpi(ch)?\.so[.\d]*", os.path.basename(file)):
            return pathlib.Path(file)
    found = "mpi4py has loaded no file named libmpi or libmpich"
    raise UsageError(explain("no MPI found", found, INSTALL_MPI))


def _find_launcher(family: Family, library: pathlib.Path) -> pathlib.Path:
    """The family's launcher nearest to the library: same prefix, environment, then PATH."""
    folders = [parent / "bin" for parent in library.parents]
    folders.append(pathlib.Path(sys.executable).parent)
    folders += [pathlib.Path(folder) for folder in os.get_exec_path() if folder]
    for folder in folders:
        for name in _LAUNCHER_NAMES[family]:
            if os.access(folder / name, os.X_OK) and _belongs(folder / name, family):
                return folder / name
    found = f"there is no mpiexec of {family} in its prefix, this environment or PATH"
    raise UsageError(explain(f"the launcher of {library}", found, INSTALL_MPI))


def _belongs(launcher: pathlib.Path, family: Family) -> bool:
    answer = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False)
    try:
        return identify(answer.stdout)[0] == family
    except UsageError:
        return False


def quoted(command: Sequence[str]) -> str:
    """A command as one would type it."""
    return shlex.join(command)
