"""Start a job of many processes and end all of them, also those that left its session.

Launchers start ranks in sessions of their own, so a process group does not contain the whole job.
This process becomes the subreaper of all its descendants. Processes that a job leaves behind become
its children, so it finds them, reports them and kills them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

PR_SET_CHILD_SUBREAPER = 36

# Seconds. A helper of Python's multiprocessing ends when it notices that its parent has ended. On a
# busy machine it may still be starting.
_TO_LEAVE_BY_ITSELF = 30.0

# Children of this process that belong to no job; their descendants are excluded too.
APART: set[int] = set()


@dataclass(frozen=True)
class Job:
    """How a job ended: `problem` is None for status 0; `left` are processes that it left behind."""

    problem: str | None
    left: list[str]

    @property
    def well(self) -> bool:
        return not self.problem and not self.left


def run_job(command: list[str], environment: dict[str, str], timeout: float) -> Job:
    """Run `command` for at most `timeout` seconds; afterwards no process of it is left."""
    before = adopted()
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    problem = None
    timed_out = False
    try:
        status = process.wait(timeout)
        if status:
            problem = f"exit status {status}"
    except subprocess.TimeoutExpired:
        timed_out = True
        problem = f"still running after {timeout:g} s"
        for pid in sorted(descendants() - before):
            print(f"{title(pid)}\n{threads_of(pid)}", flush=True)
        process.terminate()  # a launcher then ends its ranks, on other hosts too
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    finally:
        left = end_descendants(before)
    return Job(problem, [] if timed_out else left)


def adopted() -> set[int]:
    """Make this process a subreaper; returns its descendants that exist before the job."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return descendants()


class Beside:
    """A command that runs concurrently with this process; its output is shown at its end."""

    ended_core_seconds: ClassVar[float] = 0.0
    """The core seconds of such commands that have ended and are counted apart from their parent."""

    def __init__(self, command: list[str], output: Path, counts_apart: bool = True) -> None:
        self._output = output
        begin = time.monotonic()
        with output.open("w") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        APART.add(self._process.pid)
        self.seconds = 0.0
        """The seconds that it took, once it has ended."""
        self.core_seconds = 0.0
        """The core seconds of the command and of all processes that it has waited for."""
        self._status = 0

        def await_end() -> None:
            _, status, used = os.wait4(self._process.pid, 0)
            self._status = self._process.returncode = os.waitstatus_to_exitcode(status)
            self.seconds = time.monotonic() - begin
            self.core_seconds = used.ru_utime + used.ru_stime
            if counts_apart:
                Beside.ended_core_seconds += self.core_seconds

        self._awaits = threading.Thread(target=await_end, daemon=True)
        self._awaits.start()

    @property
    def running(self) -> bool:
        return self._awaits.is_alive()

    def wait(self) -> int:
        """Block until it has ended, and return its exit status."""
        self._awaits.join()
        print(self._output.read_text(), flush=True)
        return self._status


def end_descendants(but: set[int]) -> list[str]:
    """Kill all descendants except `but`, after some time in which they may end by themselves."""
    patience = time.monotonic() + _TO_LEAVE_BY_ITSELF
    while (living := descendants() - but) and time.monotonic() < patience:
        time.sleep(0.02)
    titles = [title(pid) for pid in living]
    while living := descendants() - but:
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return titles


def descendants() -> set[int]:
    """Return the running descendants of this process; also reaps ended children."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            pid = int(stat.parent.name)
            if state != "Z":
                children.setdefault(int(parent), []).append(pid)
            elif int(parent) == os.getpid() and pid not in APART:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
    found: set[int] = set()
    queue = [os.getpid()]
    while queue:
        below = [one for one in children.get(queue.pop(), []) if one not in APART]
        found.update(below)
        queue += below
    return found


def threads_of(pid: int) -> str:
    """Return what each thread of a process does: its name, state, processor time and where it is.

    With gdb also all stacks, which name the functions of C++ that Python's own stacks leave out.
    """
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            fields, where = rest.split(), (task / "wchan").read_text()
            ticks = int(fields[11]) + int(fields[12])
            lines.append(f"  {task.name} {name}: {fields[0]}, {ticks} ticks, in {where}")
    if shutil.which("gdb") is not None:
        command = ["gdb", "-batch", "-p", str(pid), "-ex", "thread apply all backtrace 20"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            lines += [line for line in done.stdout.splitlines() if line.startswith(("#", "Thread"))]
    return "\n".join(lines)


def title(pid: int) -> str:
    """Return the command line of a process, shortened."""
    with contextlib.suppress(OSError):
        words = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
        return f"{pid} {words.strip()[:100]}"
    return str(pid)
