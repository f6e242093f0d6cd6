"""What /proc says of processes: launcher, supervisors and ranks read it here.

Loaded once per rank, see `protocol`.
"""

from __future__ import annotations

import os


class Stat:
    """A process's line in /proc."""

    __slots__ = ("name", "parent", "started", "state")

    def __init__(self, line: str) -> None:
        _, _, rest = line.partition("(")
        self.name, _, rest = rest.rpartition(")")  # a name may hold spaces and brackets
        fields = rest.split()
        self.state = fields[0]
        self.parent = int(fields[1])
        self.started = int(fields[19])  # clock ticks since boot


def read_stat(pid: int) -> Stat:
    """OSError if there is no such process, or none in sight."""
    with open(f"/proc/{pid}/stat", errors="surrogateescape") as file:
        return Stat(file.read())


def stat(pid: int) -> Stat | None:
    """None if there is no such process, or none in sight."""
    try:
        return read_stat(pid)
    except OSError:
        return None


def pids() -> list[int]:
    """All processes of this host that are in sight."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def tree(pid: int) -> dict[int, Stat]:
    """A process and its descendants at this moment, parents first."""
    stats = {one: found for one in pids() if (found := stat(one)) is not None}
    children: dict[int, list[int]] = {}
    for one, found in stats.items():
        children.setdefault(found.parent, []).append(one)
    result = [pid]
    for one in result:  # grows while it is walked
        result += children.get(one, [])
    return {one: stats[one] for one in result if one in stats}
