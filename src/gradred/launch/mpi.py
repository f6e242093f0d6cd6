"""The MPI that mpi4py loads in this interpreter, its launcher, and the commands that start ranks.

This module never imports `mpi4py.MPI`: that would call MPI_Init in the launcher. Instead a child
process imports it, with initialisation switched off.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from gradred._util import clock
from gradred.errors import INSTALL_MPI, UsageError
from gradred.launch import protocol, proxy, variables
from gradred.launch.hosts import Host

Family = Literal["Open MPI", "MPICH", "Intel MPI"]
Binding = Literal["none", "core", "numa"]

_LAUNCHER_NAMES: dict[Family, tuple[str, ...]] = {
    "Open MPI": ("mpiexec.openmpi", "mpiexec", "mpirun"),
    "MPICH": ("mpiexec.mpich", "mpiexec.hydra", "mpiexec"),
    "Intel MPI": ("mpiexec.hydra", "mpiexec"),
}
# Options of any mpiexec that place ranks; both MPIs accept most of them with one dash or two.
_PLACEMENT = {
    *("map-by", "rankmap", "rankfile", "rf", "ppn", "perhost", "npernode", "N"),
    *("H", "host", "hosts", "hostlist", "f", "hostfile", "machinefile"),
}
# Options that mpiexec applies to one program, with the number of words that follow each.
_OF_MPICH = {"env": 2, "envlist": 1, "envnone": 0, "envall": 0, "wdir": 1, "path": 1}
_BY_PROGRAM: dict[Family, dict[str, int]] = {
    "Open MPI": {
        **dict.fromkeys(("wdir", "wd", "path", "H", "host", "hostfile", "machinefile"), 1),
        **dict.fromkeys(("prefix", "preload-files", "pset"), 1),
        **dict.fromkeys(("preload-binary", "s", "set-cwd-to-session-dir"), 0),
    },
    "MPICH": _OF_MPICH,
    "Intel MPI": {**_OF_MPICH, "host": 1},
}
# Variables that Python may need before the job's own reach a rank, and the clock of tests.
_TO_START = ("PATH", "LD_LIBRARY_PATH", clock.VARIABLE)
# Variables of batch systems. An mpiexec that sees them starts ranks on the granted hosts, by the
# batch system's own method, whatever hosts its options name.
_OF_BATCH = (
    *("SLURM_", "PBS_", "LSB_", "LSF_", "SGE_", "PE_HOSTFILE", "COBALT_", "LOADL_"),
    # Variables by which a cluster may configure the same in mpiexec.
    *("HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER", "HYDRA_RMK", "HYDRA_HOST_FILE", "I_MPI_HYDRA_"),
    *("PRTE_MCA_plm", "PRTE_MCA_ras", "OMPI_MCA_plm", "OMPI_MCA_ras"),
)

_LEAST_PORT, _TRIED_PORTS = 20000, 100  # for rank 0

# Runs in a child process, where mpi4py finds the same libmpi as in a rank.
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
    """An MPI installation: the library that mpi4py loads, and its launcher."""

    family: Family
    version: str
    library: pathlib.Path
    launcher: pathlib.Path

    def __str__(self) -> str:
        return f"{self.family} {self.version} ({self.library})"


@functools.cache
def find_mpi() -> Mpi:
    """Return the MPI that mpi4py loads in this interpreter, and its launcher. Cached.

    Blocks for about 0.1 s, the time of a child process.

    Raises:
        UsageError: no mpi4py, no MPI, or no launcher of the same MPI; the message has a remedy.
    """
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        reason = (probe.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UsageError("no MPI found", f"mpi4py cannot load one ({reason})", INSTALL_MPI)
    text, files = json.loads(probe.stdout.splitlines()[-1])
    family, version = identify(text)
    library = _libmpi(files)
    return Mpi(family, version, library, _find_launcher(family, library))


def inside_job(environment: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """Return rank and size if mpiexec started this process, or an ancestor, as a rank."""
    environment = os.environ if environment is None else environment
    places = (variables.place_in(names, environment) for names in variables.RANK_VARIABLES)
    return next((job for job in places if job is not None), None)


def refuse_inside_job(asked: str) -> None:
    """Raise UsageError in a rank: most MPIs' launchers cannot start jobs from there."""
    job = inside_job()
    if job is not None:
        found = f"this process already belongs to a job (rank {job[0]} of {job[1]})"
        raise UsageError(asked, found, "Start it from a process that is not a rank")


def job_environment(mpi: Mpi, binding: Binding = "none") -> dict[str, str]:
    """Return the environment for ranks and mpiexec, in which `python` is this interpreter."""
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


def meeting_place(address: str = "127.0.0.1") -> dict[str, str]:
    """Return torch.distributed's rendezvous variables, unless the environment has set them.

    Rank 0 is at `address`.
    """
    chosen = {"MASTER_ADDR": address, "MASTER_PORT": str(_free_port())}
    return {name: os.environ.get(name, value) for name, value in chosen.items()}


def _free_port() -> int:
    """Return a port that is free on this host, and most likely still is when rank 0 binds it.

    Outgoing connections, on the host of rank 0 too, get ports of a range of their own. So the port
    is below that range, unless the range begins low.
    """
    try:
        range_of_outgoing = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        end = int(range_of_outgoing.split()[0])
    except (OSError, ValueError, IndexError):
        end = 0
    some = range(_LEAST_PORT, end)
    for port in [*random.SystemRandom().sample(some, min(len(some), _TRIED_PORTS)), 0]:
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("", port))
            return int(free.getsockname()[1])
    raise UsageError("a port for rank 0", "none is free", "End programs that hold ports")


def without_allocation(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split the variables into those for an mpiexec that stays on this host, and the others.

    The ranks get those hidden from mpiexec in another way.
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
    """Return the launcher and its options; the caller appends the program and its arguments.

    Args:
        mpi: the MPI of the launcher.
        ranks: the number of ranks.
        hosts: the hosts with the number of ranks of each; empty for this host.
        options: passed to the launcher unchanged. If they place the ranks (hosts, mapping),
            gradred adds no placement.
        binding: binds each rank to a core or memory node.

    The launcher passes to other hosts only the variables that a rank's start needs. The job itself
    sends the rest, in the same way under every MPI.
    """
    names = [name for name in _TO_START if name in os.environ]
    command = [str(mpi.launcher)]
    placed = has_placement(options)
    if (hosts or placed) and mpi.family != "Open MPI":
        command += ["-genvlist", ",".join([protocol.JOB, *names])]
    command += ["-n", str(ranks)]
    if mpi.family == "Open MPI":
        if not placed:
            # Open MPI's slots are physical cores. With hosts, the qualifier would put every rank on
            # the first host; there each host has exactly the slots that it needs.
            command += ["--map-by", "slot" if hosts else "slot:OVERSUBSCRIBE"]
        overload = "" if binding == "none" else ":overload-allowed"
        command += ["--bind-to", binding + overload]
        command += [word for name in names for word in ("-x", name)]
    elif mpi.family == "MPICH" and binding != "none":
        command += ["-bind-to", binding]
    return command + _host_options(mpi.family, hosts) + list(options)


def job_command(
    mpi: Mpi,
    counts: Sequence[int],
    *,
    hosts: Sequence[Host] = (),
    options: Sequence[str] = (),
    binding: Binding = "none",
) -> list[str]:
    """Return the launcher with all of its words: it starts a launch proxy for each rank.

    Args:
        mpi: the MPI of the launcher.
        counts: the number of ranks of each program. They have sections of the command, from which
            the MPI knows the program of a rank (MPI_APPNUM).
        hosts: the hosts with the number of ranks of each, of all programs; empty for this host.
        options: as in `launcher_command`; those that mpiexec applies to one program are for each.
        binding: binds each rank to a core or memory node.
    """
    proxies = [*_options_by_program(mpi.family, options), *proxy_command(mpi.family)]
    # Open MPI takes hosts for each section, the others for all.
    by_section = mpi.family == "Open MPI"
    shares = _shares(hosts, counts) if by_section else [hosts for _ in counts]
    command = launcher_command(mpi, counts[0], hosts=shares[0], options=options, binding=binding)
    command += proxy_command(mpi.family)
    for count, share in zip(counts[1:], shares[1:], strict=True):
        on_hosts = _host_options(mpi.family, share) if by_section else []
        command += [":", "-n", str(count), *on_hosts, *proxies]
    return command


def _options_by_program(family: Family, options: Sequence[str]) -> list[str]:
    """Return the options, with their words, that mpiexec does not apply to all programs."""
    found: list[str] = []
    words = iter(options)
    for word in words:
        name, equals, _ = word.lstrip("-").partition("=")
        following = _BY_PROGRAM[family].get(name) if word.startswith("-") else None
        if following is not None:
            found += [word, *itertools.islice(words, 0 if equals else following)]
    return found


def _shares(hosts: Sequence[Host], counts: Sequence[int]) -> list[list[Host]]:
    """Return the hosts of each program, which follow each other in the hosts' slots."""
    slots = iter([host.name for host in hosts for _ in range(host.slots or 1)])
    shares = [collections.Counter(itertools.islice(slots, count)) for count in counts]
    return [[Host(name, slots) for name, slots in share.items()] for share in shares]


def _host_options(family: Family, hosts: Sequence[Host]) -> list[str]:
    if not hosts:
        return []
    if family != "Intel MPI":
        return ["--host" if family == "Open MPI" else "-hosts", ",".join(map(str, hosts))]
    if len({host.slots for host in hosts}) > 1:
        asked = f"{', '.join(map(str, hosts))} with Intel MPI"
        found = "its launcher takes the same number of ranks for every host"
        raise UsageError(asked, found, "Give every host as many slots as the others")
    names = ",".join(host.name for host in hosts)
    return ["-hosts", names, "-ppn", str(hosts[0].slots)]


def program_command(program: Sequence[str], path: str, folder: str = "") -> list[str]:
    """Return the command of the ranks; a `.py` file runs with this interpreter.

    `path` is as PATH. The program starts in `folder`; if it is empty, in this process's.

    Raises:
        UsageError: the program or file does not exist.
    """
    name = program[0]
    if name.endswith(".py"):
        if not os.path.isfile(os.path.join(folder, name)):
            raise UsageError(name, "there is no such file", "Give the program's path")
        return [sys.executable, *program]
    place = os.path.join(folder, name) if os.path.dirname(name) else name
    if shutil.which(place, path=path) is None:
        found = "there is no such program, or it is not executable"
        raise UsageError(name, found, "Give its path, or a name that is in PATH")
    return list(program)


def proxy_command(family: Family | None = None) -> list[str]:
    """Return the command that mpiexec starts for each rank; the job sends it the program."""
    package = os.path.dirname(os.path.dirname(proxy.__file__))
    carry = ["-x", protocol.JOB] if family == "Open MPI" else []
    return [*carry, sys.executable, "-I", "-S", "-c", proxy.BOOTSTRAP, package]


def has_placement(options: Sequence[str]) -> bool:
    """Return whether options of mpiexec place the ranks."""
    names = [option.partition("=")[0] for option in options]
    return any(name.startswith("-") and name.lstrip("-") in _PLACEMENT for name in names)


def identify(text: str) -> tuple[Family, str]:
    """Find family and version in the text of MPI_Get_library_version or `mpiexec --version`."""
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
    raise UsageError("the MPI of this interpreter", found, INSTALL_MPI)


def _libmpi(files: Sequence[str]) -> pathlib.Path:
    """Return the MPI library among the files that a process has mapped."""
    for file in files:
        if re.fullmatch(r"libmpi(ch)?\.so[.\d]*", os.path.basename(file)):
            return pathlib.Path(file)
    found = "mpi4py has loaded no file named libmpi or libmpich"
    raise UsageError("no MPI found", found, INSTALL_MPI)


def _find_launcher(family: Family, library: pathlib.Path) -> pathlib.Path:
    """Find the family's launcher nearest to the library: in its prefix, environment, or PATH."""
    folders = [parent / "bin" for parent in library.parents]
    folders.append(pathlib.Path(sys.executable).parent)
    folders += [pathlib.Path(folder) for folder in os.get_exec_path() if folder]
    broken: dict[pathlib.Path, str] = {}
    for folder in folders:
        for name in _LAUNCHER_NAMES[family]:
            launcher = folder / name
            if os.access(launcher, os.X_OK):
                answer = subprocess.run(
                    [launcher, "--version"], capture_output=True, text=True, check=False
                )
                if _belongs(answer.stdout, family):
                    return launcher
                if answer.returncode:
                    broken[launcher] = (answer.stderr.strip() or answer.stdout.strip()).split("\n")[
                        0
                    ]
    asked = f"the launcher of {library}"
    if broken:
        launcher, words = next(iter(broken.items()))
        needs_home = family == "Open MPI" and "HOME" not in os.environ
        remedy = "Set HOME" if needs_home else f"Let `{launcher} --version` answer"
        raise UsageError(asked, f"{launcher} says: {words}", remedy)
    found = f"there is no mpiexec of {family} in its prefix, this environment or PATH"
    raise UsageError(asked, found, INSTALL_MPI)


def _belongs(version: str, family: Family) -> bool:
    """Return whether a launcher that says this of its version belongs to a family of MPIs."""
    try:
        return identify(version)[0] == family
    except UsageError:
        return False
