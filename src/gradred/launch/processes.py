"""Processes of a job: find a whole tree of them and end it reliably."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Iterable

from gradred._util import clock
from gradred.launch import proc


@dataclasses.dataclass(frozen=True)
class Process:
    """A process; its start time distinguishes it from a later process with the same number."""

    pid: int
    started: int  # clock ticks since boot

    def alive(self) -> bool:
        """Return whether it still runs; a zombie does not."""
        found = proc.stat(self.pid)
        return found is not None and found.state not in "ZX" and found.started == self.started


def tree(pid: int) -> list[Process]:
    """Return a process and its current descendants, parents first."""
    return [Process(one, found.started) for one, found in proc.tree(pid).items()]


def end_tree(process: subprocess.Popen[bytes], grace: float) -> None:
    """End a launcher and all its descendants: SIGTERM, then after `grace` seconds SIGKILL.

    This includes ranks that have left the launcher's process group or outlive it. Returns when all
    of them have ended.
    """
    members = tree(process.pid) if process.poll() is None else []
    if members:
        process.terminate()
    deadline = clock.now() + grace
    while clock.now() < deadline and (
        process.poll() is None or any(member.alive() for member in members)
    ):
        time.sleep(0.01)
    members += tree(process.pid) if process.poll() is None else []
    signal_all(members, signal.SIGKILL)
    process.wait()
    while any(member.alive() for member in members):
        time.sleep(0.01)


def signal_all(members: Iterable[Process], number: int) -> None:
    """Send a signal to each process that still runs."""
    for member in members:
        if member.alive():
            try:
                os.kill(member.pid, number)
            except ProcessLookupError:
                continue  # it ended between the two statements


def signal_name(number: int) -> str:
    """Return a signal's name: `SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"real-time signal {number}"
