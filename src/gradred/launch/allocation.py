"""The hosts that Slurm, PBS or LSF have granted to this process."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
from collections.abc import Mapping, Sequence

from gradred.errors import UsageError
from gradred.launch import variables
from gradred.launch.hosts import Host, Hosts, merged


def granted(environment: Mapping[str, str]) -> Hosts | None:
    """Return the hosts that Slurm, PBS or LSF granted to this process; None outside of a job.

    Raises:
        UsageError: the batch system's variables cannot be understood.
    """
    for find in (_slurm, _pbs, _lsf):
        found = find(environment)
        if found is not None and found.hosts:
            return found
    return None


def expand(text: str) -> list[str]:
    """Expand Slurm's short form: `n[1-3,07],login` is n1 n2 n3 n07 login."""
    names: list[str] = []
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)
    if ",".join(parts) != text:
        raise ValueError(f"{text!r} is no list of hosts")
    for part in parts:
        pieces = re.split(r"\[([^\]]*)\]", part.strip())
        choices = [_range(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
        names += ["".join(words) for words in itertools.product(*choices)]
    return names


def _range(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        width = len(first)
        numbers += [f"{number:0{width}d}" for number in range(int(first), int(last or first) + 1)]
    return numbers


def _slurm(environment: Mapping[str, str]) -> Hosts | None:
    """Read the hosts of this process's step, or else those of the whole job."""
    job = environment.get("SLURM_JOB_ID")
    if not job or not (groups := _slurm_groups(environment, f"Slurm job {job}")):
        return None
    if step := _slurm_step(environment):
        of_step = _slurm_hosts(f"Slurm step {job}.{step}", _slurm_group(environment, "STEP_", ""))
        of_job = {name for group in groups for name in _slurm_names(f"Slurm job {job}", group)}
        # The variables of a step are in every process that the step has started, which may have
        # submitted this job.
        if {host.name for host in of_step} <= of_job:
            return Hosts(f"Slurm step {job}.{step}", merged(of_step), granted=True)
    source = f"Slurm job {job}"
    hosts = [host for group in groups for host in _slurm_hosts(source, group)]
    source += f" of {len(groups)} groups" if len(groups) > 1 else ""
    return Hosts(source, merged(hosts), granted=True)


def _slurm_step(environment: Mapping[str, str]) -> str:
    """Return the step that srun has started this process in; empty if it is another shell's."""
    step = environment.get("SLURM_STEP_ID", "")
    if step.lower() in variables.SLURM_SHELLS or not environment.get("SLURM_STEP_NODELIST"):
        return ""
    return step


def _slurm_groups(environment: Mapping[str, str], source: str) -> list[tuple[str, str]]:
    """Return the hosts and tasks of each group of a job; one that is not heterogeneous has one."""
    for kind in ("HET", "PACK"):  # the new name and the old one
        if environment.get(f"SLURM_{kind}_SIZE", "").isdecimal():
            count = int(environment[f"SLURM_{kind}_SIZE"])
            groups = [_slurm_group(environment, "JOB_", f"_{kind}_GROUP_{i}") for i in range(count)]
            if not all(nodes for nodes, _ in groups):
                found = f"it has {count} groups, and the variables of one are not set"
                raise UsageError(source, found, "Name the hosts with -H")
            return groups
    group = _slurm_group(environment, "JOB_", "")
    return [group] if group[0] else []


def _slurm_group(environment: Mapping[str, str], of: str, ending: str) -> tuple[str, str]:
    """Return the hosts and tasks of a group or step, in Slurm's short form."""
    nodes = environment.get(f"SLURM_{of}NODELIST{ending}")
    nodes = nodes or environment.get(f"SLURM_NODELIST{ending}", "")
    of = "" if of == "JOB_" else of
    return nodes, environment.get(f"SLURM_{of}TASKS_PER_NODE{ending}", "")


def _slurm_hosts(source: str, group: tuple[str, str]) -> list[Host]:
    """Read hosts and their tasks, which are `2(x3),1`; if they are not known, a host has 1."""
    names = _slurm_names(source, group)
    slots = [
        int(count)
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", group[1])
        for _ in range(int(times or 1))
    ] or [1] * len(names)
    if len(slots) != len(names):
        raise _not_understood(source, group)
    return [Host(name, count) for name, count in zip(names, slots, strict=True)]


def _slurm_names(source: str, group: tuple[str, str]) -> list[str]:
    try:
        return expand(group[0])
    except ValueError:
        raise _not_understood(source, group) from None


def _not_understood(source: str, group: tuple[str, str]) -> UsageError:
    found = f"its hosts {group[0]!r} and tasks {group[1]!r} cannot be understood"
    return UsageError(source, found, "Name the hosts with -H")


def _pbs(environment: Mapping[str, str]) -> Hosts | None:
    """Read PBS's hosts; `PBS_NODEFILE` has one line per slot."""
    path = environment.get("PBS_NODEFILE")
    if not environment.get("PBS_JOBID") or not path:
        return None
    return _one_per_line(f"PBS job {environment['PBS_JOBID']}", path)


def _lsf(environment: Mapping[str, str]) -> Hosts | None:
    """Read LSF's hosts; `LSB_MCPU_HOSTS` is `h1 4 h2 4`, a long list is in a file of slots."""
    if not environment.get("LSB_JOBID"):
        return None
    source = f"LSF job {environment['LSB_JOBID']}"
    words = environment.get("LSB_MCPU_HOSTS", "").split()
    if not words:
        path = environment.get("LSB_DJOB_HOSTFILE")
        return _one_per_line(source, path) if path else None
    pairs = zip(words[::2], words[1::2], strict=False)
    if len(words) % 2 or not all(word.isdecimal() for word in words[1::2]):
        found = f"its hosts {' '.join(words)!r} cannot be understood"
        raise UsageError(source, found, "Name the hosts with -H")
    return Hosts(source, merged(Host(name, int(count)) for name, count in pairs), granted=True)


def _one_per_line(source: str, path: str) -> Hosts:
    try:
        names: Sequence[str] = pathlib.Path(os.fspath(path)).read_text(encoding="utf-8-sig").split()
    except OSError as error:
        found = f"its list of hosts cannot be read ({error})"
        raise UsageError(source, found, "Name the hosts with -H") from error
    return Hosts(source, merged(Host(name, 1) for name in names), granted=True)
