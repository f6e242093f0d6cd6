"""The hosts of a job, as the user lists them, and the ranks on each host.

`hostfile` reads them from a file, `allocation` from a batch system.
"""

from __future__ import annotations

import dataclasses
import getpass
import re
import socket
from collections.abc import Iterable

from gradred.errors import UsageError

_NAME = r"(?:\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9_](?:[\w.-]*\w)?)"
_HOST = re.compile(rf"({_NAME})(?::(\d+))?")
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
        raise UsageError(f"-H {text!r}", "it names no host", "Write host:slots,...")
    return Hosts(f"-H {text}", merged(parse_host(part, f"-H {text}") for part in parts))


def place(found: Hosts, ranks: int | None) -> list[Host]:
    """Return the hosts that get ranks, in order, with the number of ranks of each.

    Slots are filled host by host. Hosts without a known number of slots share the ranks evenly. So
    do the hosts that a batch system granted, if there are more ranks than slots.

    `ranks` is None for one rank per slot.

    Raises:
        UsageError: there are more ranks than the user gave slots for.
    """
    open_ended = found.granted or all(host.slots is None for host in found.hosts)
    ranks = found.slots if ranks is None else ranks
    if ranks > found.slots and not open_ended:
        asked = f"{ranks} ranks on {found.source}"
        named = f"{len(found.hosts)} host{'s' if len(found.hosts) > 1 else ''}"
        remedy = "Ask for fewer, or give more slots: host:slots"
        raise UsageError(asked, f"{named} with {found.slots} slots", remedy)
    rounds, left = divmod(ranks, found.slots)
    placed = []
    for host in found.hosts:
        more = min(left, host.slots or 1)
        left -= more
        if count := rounds * (host.slots or 1) + more:
            placed.append(Host(host.name, count))
    return placed


def is_this(name: str) -> bool:
    """Return whether a name stands for the host of this process."""
    own = socket.gethostname()
    return name in (*_LOCAL, own, own.partition(".")[0])


def parse_host(text: str, where: str) -> Host:
    """Parse `h1`, `h1:2` or `user@h1`, if that is this process's user; `where` is for messages.

    Raises:
        UsageError: it is not a host, or one that the launchers of the MPIs cannot reach.
    """
    user, at, rest = text.rpartition("@")
    match = _HOST.fullmatch(rest if at else text)
    if match is None or match[2] == "0":
        raise UsageError(where, f"{text!r} is not a host", "Write host or host:slots, at least 1")
    name = match[1]
    if name.startswith("[") and name not in _LOCAL:
        found = f"mpiexec takes no IPv6 address, and {name} is one"
        raise UsageError(where, found, "Name the host, here and in /etc/hosts")
    if at:
        require_own_user(user, name, where)
    return Host(name, None if match[2] is None else int(match[2]))


def require_own_user(user: str, host: str, where: str) -> None:
    """Raise UsageError unless `user` is this process's user."""
    if user != getpass.getuser():
        found = f"{user!r} is another user than {getpass.getuser()!r}, who starts the job"
        raise UsageError(where, found, f"Name the user in ~/.ssh/config: Host {host}, User {user}")


def merged(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Return each host once, with the sum of its slots."""
    found: dict[str, Host] = {}
    for host in hosts:
        before = found.get(host.name)
        if before is not None:
            host = Host(host.name, (before.slots or 1) + (host.slots or 1))
        found[host.name] = host
    return tuple(found.values())
