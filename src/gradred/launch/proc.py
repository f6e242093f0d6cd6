"""Read /proc, for the launcher, supervisors and ranks.

Every rank's start loads this module, see `protocol`.
"""

from __future__ import annotations

import contextlib
import os


class Stat:
    """The fields of /proc/PID/stat."""

    __slots__ = ("name", "parent", "started", "state")

    def __init__(self, line: str) -> None:
        _, _, rest = line.partition("(")
        self.name, _, rest = rest.rpartition(")")  # a name may contain spaces and brackets
        fields = rest.split()
        self.state = fields[0]
        self.parent = int(fields[1])
        self.started = int(fields[19])  # clock ticks since boot


def read_stat(pid: int) -> Stat:
    """Read the fields of a process; OSError if it does not exist or is not visible."""
    with open(f"/proc/{pid}/stat", errors="surrogateescape") as file:
        return Stat(file.read())


def stat(pid: int) -> Stat | None:
    """Read the fields of a process; None if it does not exist or is not visible."""
    try:
        return read_stat(pid)
    except OSError:
        return None


def read(pid: int, name: str) -> bytes:
    """Read a file of a process's folder; OSError if it does not exist or is not visible."""
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()


def opened(pid: int) -> set[str]:
    """Return the files and sockets that a process has open; empty if they are not visible."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path))
    return found


def pids() -> list[int]:
    """Return all visible processes of this host."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def tree(pid: int) -> dict[int, Stat]:
    """Return a process and its current descendants, parents first."""
    stats = {one: found for one in pids() if (found := stat(one)) is not None}
    children: dict[int, list[int]] = {}
    for one, found in stats.items():
        children.setdefault(found.parent, []).append(one)
    result = [pid]
    for one in result:  # grows while it is walked
        result += children.get(one, [])
    return {one: stats[one] for one in result if one in stats}
