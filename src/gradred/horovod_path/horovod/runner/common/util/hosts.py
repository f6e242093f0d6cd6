"""Hosts, and the ranks on each host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gradred.launch import hostfile as _hostfile
from gradred.launch import hosts as _hosts


@dataclass(frozen=True)
class HostInfo:
    """A host and the ranks that it has room for."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Parse `host:slots`."""
        return parse_hosts(host_string)[0]


@dataclass(frozen=True)
class SlotInfo:
    """The position of one rank: in the job, on its host, and among ranks of its local rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Parse `h1:2,h2:2`.

    Raises:
        ValueError: a part is not a host.
    """
    return [HostInfo(one.name, one.slots or 1) for one in _hosts.parse_list(hosts_string).hosts]


def parse_host_files(filename: str) -> str:
    """Convert a file with lines `h1 slots=2` to `h1:2,h2:2`.

    Raises:
        ValueError: the file cannot be read, or a line is not a host.
    """
    found = _hostfile.parse_file(filename).hosts
    return ",".join(f"{one.name}:{one.slots or 1}" for one in found)


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Assign ranks to the hosts' slots, host by host.

    Args:
        hosts: the hosts, in the order of their ranks.
        min_num_proc: the least number of ranks.
        max_num_proc: the largest number of ranks; None for one per slot.

    Raises:
        ValueError: the hosts have fewer slots than `min_num_proc`.
    """
    places = [(host.hostname, local) for host in hosts for local in range(host.slots)]
    places = places[:max_num_proc]
    if len(places) < min_num_proc:
        raise ValueError(f"{min_num_proc} ranks were asked for, and there are {len(places)} slots")
    on_host = Counter(name for name, _ in places)
    with_local = Counter(local for _, local in places)
    before: Counter[int] = Counter()  # hosts that have a rank with this local rank
    found = []
    for rank, (name, local) in enumerate(places):
        cross = (before[local], with_local[local])
        sizes = (len(places), on_host[name], cross[1])
        found.append(SlotInfo(name, rank, local, cross[0], *sizes))
        before[local] += 1
    return found
