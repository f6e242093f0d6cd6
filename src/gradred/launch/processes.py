"""Processes of a job: find a whole tree of them, and end it for certain."""

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
    """A process, told apart by its start time from a later one with the same number."""

    pid: int
    started: int  # clock ticks since boot

    def alive(self) -> bool:
        """Whether it still runs; one that has ended but was not waited for does not."""
        found = proc.stat(self.pid)
        return found is not None and found.state not in "ZX" and found.started == self.started


def tree(pid: int) -> list[Process]:
    """A process and its descendants at this moment, parents first."""
    return [Process(one, found.started) for one, found in proc.tree(pid).items()]


def end_tree(process: subprocess.Popen[bytes], grace: float) -> None:
    """End a launcher and everything it started: SIGTERM, then after `grace` seconds SIGKILL.

    Ranks that have left the launcher's process group, or outlive it, are ended too. Returns when
    all of them are gone.
    """
    members = tree(process.pid) if process.poll() is None else []
    if members:
        process.terminate()
    deadline = clock.now() + grace
    while _survivors(process, members) and clock.now() < deadline:
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
