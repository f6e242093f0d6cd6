"""The hosts of a job, from the user's list or a batch system, and the ranks on each host."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import re
import socket
from collections.abc import Iterable, Mapping, Sequence

from gradred.errors import UsageError, explain

_NAME = r"(?:\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9_](?:[\w.-]*\w)?)"
_HOST = re.compile(rf"({_NAME})(?::(\d+))?")
_SETTING = re.compile(r"(\w+)\s*=\s*(\S+)")
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


@dataclasses.dataclass(frozen=True)
class Host:
    """A host and the number of ranks that it has room for; None if unknown."""

    name: str
    slots: int | None = None

    def __str__(self) -> str:
        return self.name if self.slots is None else f"{self.name}:{self.slots}"


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Hosts, and the place where they were found, for messages."""

    source: str
    hosts: tuple[Host, ...]
    granted: bool = False  # by a batch system: more ranks than slots are spread over the hosts

    @property
    def slots(self) -> int:
        """The number of ranks that the hosts have room for."""
        return sum(host.slots or 1 for host in self.hosts)


def parse_list(text: str) -> Hosts:
    """Parse `h1:2,h2:2` or `h1,h2`; each mention without a number is one more slot.

    Raises:
        UsageError: a part is not a host.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(explain(f"-H {text!r}", "it names no host", "Write host:slots,..."))
    return Hosts(f"-H {text}", _merged(_host(part, f"-H {text}") for part in parts))


def parse_file(path: str) -> Hosts:
    """Parse a file with one host per line: `h1`, `h1:2` (MPICH) or `h1 slots=2` (Open MPI).

    Empty lines, text after a `#`, and settings other than `slots` are ignored.

    Raises:
        UsageError: the file cannot be read, or a line is not a host.
    """
    try:
        text = pathlib.Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        found = f"it cannot be read ({error})"
        raise UsageError(explain(f"--hostfile {path}", found, "Give a text file")) from error
    hosts = parse_lines(text, f"--hostfile {path}")
    if not hosts:
        raise UsageError(explain(f"--hostfile {path}", "it names no host", "Name one per line"))
    return Hosts(f"--hostfile {path}", hosts)


def parse_lines(text: str, where: str) -> tuple[Host, ...]:
    """Parse lines in the form of `parse_file`; may return no hosts.

    Args:
        text: the lines.
        where: the place of the lines, for messages.

    Raises:
        UsageError: a line is not a host.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if content:
            hosts.append(_line(content, f"{where}, line {number}"))
    return _merged(hosts)


def allocation(environment: Mapping[str, str]) -> Hosts | None:
    """Return the hosts that Slurm, PBS or LSF granted to this process; None outside of a job.

    Raises:
        UsageError: the batch system's variables cannot be understood.
    """
    for find in (_slurm, _pbs, _lsf):
        found = find(environment)
        if found is not None and found.hosts:
            return found
    return None


def place(found: Hosts, ranks: int | None) -> list[Host]:
    """Return the hosts that get ranks, in order, with the number of ranks of each.

    Slots are filled host by host. Hosts without a known number of slots share the ranks evenly. So
    do the hosts that a batch system granted, if there are more ranks than slots.

    Args:
        found: the hosts.
        ranks: the number of ranks; None for one per slot.

    Raises:
        UsageError: there are more ranks than the user gave slots for.
    """
    open_ended = found.granted or all(host.slots is None for host in found.hosts)
    ranks = found.slots if ranks is None else ranks
    if ranks > found.slots and not open_ended:
        asked = f"{ranks} ranks on {found.source}"
        named = f"{len(found.hosts)} host{'s' if len(found.hosts) > 1 else ''}"
        remedy = "Ask for fewer, or give more slots: host:slots"
        raise UsageError(explain(asked, f"{named} with {found.slots} slots", remedy))
    rounds, left = divmod(ranks, found.slots)
    if all(host.slots is None for host in found.hosts):
        counts = [rounds + (index < left) for index in range(len(found.hosts))]
    else:
        counts = []
        for host in found.hosts:
            more = min(left, host.slots or 1)
            left -= more
            counts.append(rounds * (host.slots or 1) + more)
    named_counts = zip(found.hosts, counts, strict=True)
    return [Host(host.name, count) for host, count in named_counts if count]


def is_this(name: str) -> bool:
    """Return whether a name stands for the host of this process."""
    own = socket.gethostname()
    return name in (*_LOCAL, own, own.partition(".")[0])


def expand(text: str) -> list[str]:
    """Expand Slurm's short form: `n[1-3,07],login` is n1 n2 n3 n07 login."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
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


def _host(text: str, where: str) -> Host:
    match = _HOST.fullmatch(text)
    if match is None or match[2] == "0":
        found = f"{text!r} is not a host"
        raise UsageError(explain(where, found, "Write host or host:slots, at least 1"))
    return Host(match[1], None if match[2] is None else int(match[2]))


def _line(text: str, where: str) -> Host:
    name, *rest = text.split(maxsplit=1)
    host = _host(name, where)
    settings = dict(_SETTING.findall(rest[0])) if rest else {}
    if rest and _SETTING.sub("", rest[0]).strip():
        found = f"{rest[0]!r} is not a setting"
        raise UsageError(explain(where, found, "Write host, host:slots or host slots=N"))
    if "slots" not in settings:
        return host
    return _host(f"{host.name}:{settings['slots']}", where)


def _merged(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Return each host once, with the sum of its slots."""
    found: dict[str, Host] = {}
    for host in hosts:
        before = found.get(host.name)
        if before is not None:
            host = Host(host.name, (before.slots or 1) + (host.slots or 1))
        found[host.name] = host
    return tuple(found.values())


def _slurm(environment: Mapping[str, str]) -> Hosts | None:
    """Read Slurm's hosts; `SLURM_TASKS_PER_NODE` is `2(x3),1`, and without it a host has 1 task."""
    nodes = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if not environment.get("SLURM_JOB_ID") or not nodes:
        return None
    source = f"Slurm job {environment['SLURM_JOB_ID']}"
    tasks = environment.get("SLURM_TASKS_PER_NODE", "")
    try:
        names = expand(nodes)
        slots = [
            int(count)
            for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks)
            for _ in range(int(times or 1))
        ] or [1] * len(names)
        hosts = [Host(name, count) for name, count in zip(names, slots, strict=True)]
    except ValueError as error:
        found = f"its hosts {nodes!r} and tasks {tasks!r} cannot be understood"
        raise UsageError(explain(source, found, "Name the hosts with -H")) from error
    return Hosts(source, _merged(hosts), granted=True)


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
        raise UsageError(explain(source, found, "Name the hosts with -H"))
    return Hosts(source, _merged(Host(name, int(count)) for name, count in pairs), granted=True)


def _one_per_line(source: str, path: str) -> Hosts:
    try:
        names: Sequence[str] = pathlib.Path(os.fspath(path)).read_text().split()
    except OSError as error:
        found = f"its list of hosts cannot be read ({error})"
        raise UsageError(explain(source, found, "Name the hosts with -H")) from error
    return Hosts(source, _merged(Host(name, 1) for name in names), granted=True)
