"""Processes of a job: find a whole tree of them, and end it for certain."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Process:
    """A process, told apart by its start time from a later one with the same number."""

    pid: int
    started: int  # clock ticks since boot

    def alive(self) -> bool:
        """Whether it still runs; one that has ended but was not waited for does not."""
        state = _stat(self.pid)
        return state is not None and state[0] not in "ZX" and state[2] == self.started


def tree(pid: int) -> list[Process]:
    """A process and its descendants at this moment, parents first."""
    stats = {int(path.name): _stat(int(path.name)) for path in pathlib.Path("/proc").glob("[0-9]*")}
    children: dict[int, list[int]] = {}
    for child, stat in stats.items():
        if stat is not None:
            children.setdefault(stat[1], []).append(child)
    pids = [pid]
    for parent in pids:  # grows while it is walked
        pids += children.get(parent, [])
    return [Process(p, stat[2]) for p in pids if (stat := stats.get(p)) is not None]


def end_tree(process: subprocess.Popen[bytes], grace: float) -> None:
    """End a launcher and everything it started: SIGTERM, then after `grace` seconds SIGKILL.

    Ranks that have left the launcher's process group, or outlive it, are ended too. Returns when
    all of them are gone.
    """
    members = tree(process.pid) if process.poll() is None else []
    if members:
        process.terminate()
    deadline = time.monotonic() + grace
    while _survivors(process, members) and time.monotonic() < deadline:
        time.sleep(0.01)
    members += tree(process.pid) if process.poll() is None else []
    kill_all(members)
    process.wait()
    while any(member.alive() for member in members):
        time.sleep(0.01)


def kill_all(members: Iterable[Process]) -> None:
    """SIGKILL to each that is still alive."""
    for member in members:
        if member.alive():
            try:
                os.kill(member.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended by itself between the two lines


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"real-time signal {number}"


def _survivors(process: subprocess.Popen[bytes], members: Iterable[Process]) -> bool:
    return process.poll() is None or any(member.alive() for member in members)


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and start time of a process; None if there is none."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold spaces
    return fields[0], int(fields[1]), int(fields[19])
