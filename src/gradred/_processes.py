"""Processes of a job: run one in the foreground, and end a whole tree of them for certain."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Process:
    """A process, told apart by its start time from a later one with the same number."""

    pid: int
    started: int  # clock ticks since boot

    def alive(self) -> bool:
        """Whether it still runs; one that has ended but was not waited for does not."""
        state = _stat(self.pid)
        return state is not None and state[0] not in "ZX" and state[2] == self.started


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a launcher ended: its status (128 + signal if a signal ended it), and who asked."""

    status: int
    interrupted_by: int | None


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


def run_in_foreground(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int | None = None,
    grace: float = 5.0,
) -> Ended:
    """Run a launcher with this process's terminal, passing signals on.

    `stdin` is as `subprocess` takes it: None hands this process's own on.

    A signal that this process alone received is forwarded; one from the terminal has already
    reached the launcher, which shares the process group (a second one would make it drop its
    ranks). A launcher that is still there `grace` seconds after the first SIGINT, SIGTERM or
    SIGHUP is ended with all its descendants.

    Returns:
        The launcher's exit status, and the signal that asked this process to end, if one did.
    """
    signals = {signal.SIGCHLD, *_FORWARDED}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an inherited SIG_IGN would lose the status
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        process = subprocess.Popen(command, env=environment, stdin=stdin, preexec_fn=unblock)
        ended_by = _forward(process, signals, grace)
    finally:
        unblock()
    code = process.returncode
    return Ended(code if code >= 0 else 128 - code, ended_by)


def _forward(
    process: subprocess.Popen[bytes], signals: Iterable[signal.Signals], grace: float
) -> int | None:
    """Pass signals on until the process has ended; the first that was meant to end it, if any."""
    ended_by: int | None = None
    deadline = float("inf")
    members: list[Process] = []
    while process.poll() is None:
        left = min(max(deadline - time.monotonic(), 0.0), 3600.0)
        info = signal.sigtimedwait(signals, left)
        if info is None:
            if time.monotonic() >= deadline:
                end_tree(process, grace=1.0)
        elif info.si_signo != signal.SIGCHLD:
            if info.si_signo in _ENDING and ended_by is None:
                ended_by = info.si_signo
                deadline = time.monotonic() + grace
                members = tree(process.pid)  # while all of them can still be found
            if info.si_code <= 0:  # sent by a process, to this one; the terminal's are positive
                process.send_signal(info.si_signo)
    kill_all(members)
    return ended_by


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
