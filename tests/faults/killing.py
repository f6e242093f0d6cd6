"""A job that loses a rank to SIGKILL from outside, at a random microsecond: `lose_a_rank`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
from faults import seeing

from gradred import launch
from gradred.observe import status

PROGRAM = pathlib.Path(__file__).with_name("killed.py")
RANKS = 3


@dataclasses.dataclass(frozen=True)
class Doing:
    """What the ranks do when one of them is killed."""

    title: str
    within_ms: float
    """The kill comes within this time of the beginning; things that are done once end soon."""


DOINGS = {  # keys: the functions of killed.py
    "small": Doing("small Allreduce", 100),
    "large": Doing("Allreduce of 12 MB", 200),
    "non_blocking": Doing("small Iallreduce", 100),
    "large_non_blocking": Doing("Iallreduce of 12 MB", 200),
    "tested": Doing("Iallreduce and Test", 100),
    "persistent": Doing("persistent", 100),
    "arrays": Doing("allreduce, allreduce_many", 100),
    "others": Doing("Bcast, Allgather, Reduce_scatter_block", 100),
    "first_call": Doing("the first call", 20),
    "first_non_blocking_call": Doing("the first call, non-blocking", 10),
    "duplicates": Doing("Dup, Free", 50),
    "communicators": Doing("Dup, first call, Free", 200),
    "shrinking": Doing("shrink() of a sound communicator", 100),
    "going_on": Doing("Allreduce; the others go on by shrink()", 100),
    "finalize": Doing("the program's end", 30),
}
ON_SHARED_MEMORY = ("shrinking", "going_on")  # cases that run only there


@dataclasses.dataclass
class Kill:
    """The circumstances of a kill and its consequences."""

    doing: str
    path: str
    victim: int
    moment_us: float
    """Time slept between the victim's report that all have begun and the kill.

    The kernel adds a random time.
    """
    inside: str
    """What the victim was doing."""
    operation: str
    """The last operation begun, according to its status page."""
    half_written: bool
    """Whether its result was partly of this turn and partly of an earlier one."""
    survivors: dict[int, dict[str, Any]]
    """The reports of the others, with the `seconds` from the kill to the error."""
    seen: seeing.Seen
    over_s: float
    """Seconds from the kill until `gradred run` had ended."""
    mapped: int
    """How many files in memory the victim had mapped; none of them may remain."""
    left: list[str]
    """Processes and files that existed after `gradred run` had ended."""

    @property
    def in_mpich(self) -> bool:
        """Whether the others were in the blocking call with which MPICH ends a duplication.

        MPICH makes this call inside `MPI_Test`. So the others receive no notice, and `gradred run`
        ends them.
        """
        mpich = str(launch.find_mpi().family) == "MPICH"
        making = self.inside in ("Dup", "first call")
        return mpich and making and not self.survivors


def lose_a_rank(doing: str, path: str, draw: random.Random, folder: pathlib.Path) -> Kill:
    """Run a job of `RANKS` ranks and kill one of them.

    Args:
        doing: a key of `DOINGS`.
        path: "shared memory" or "messages".
        draw: the generator that selects the victim and the moment.
        folder: empty, for files of this kill.
    """
    victim = draw.randrange(RANKS)
    moment_us = draw.uniform(0, 1000 * DOINGS[doing].within_ms)
    for name in ("doing", "result"):
        (folder / name).touch()
    os.mkfifo(folder / "begun")
    command = [sys.executable, "-m", "gradred", "run", "-np", str(RANKS)]
    command += ["--grace", str(seeing.GRACE), sys.executable, str(PROGRAM)]
    command += [doing, str(victim), str(folder)]
    variables = {"GRADRED_TIMEOUT": "20"}
    variables |= {} if path == "shared memory" else {"GRADRED_SHM": "0"}
    environment, mark = seeing.marked(variables)
    begin = time.monotonic()
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        try:
            pid = _await_begin(folder / "begun", job)
            with _Watched(pid) as watched:
                time.sleep(moment_us * 1e-6)
                os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
                out, err = job.communicate(timeout=60)
                over_s = time.monotonic() - killed
                operation = watched.last_operation()
                memory = watched.memory
        finally:
            job.kill()
    seen = seeing.Seen(
        job.returncode, time.monotonic() - begin, seeing.reports_in(out.splitlines()), err
    )
    survivors = {rank: one for rank, one in seen.reports.items() if rank != victim}
    for one in survivors.values():
        one["seconds"] = max(0.0, one["at"] - killed)
    return Kill(
        doing=doing,
        path=path,
        victim=victim,
        moment_us=moment_us,
        inside=(folder / "doing").read_bytes().rstrip(b"\0").decode(),
        operation=operation,
        half_written=_is_half_written(folder / "result"),
        survivors=survivors,
        seen=seen,
        over_s=over_s,
        mapped=len(memory),
        left=seeing.processes_of(mark) + _remains_of(memory),
    )


def _await_begin(pipe: pathlib.Path, job: subprocess.Popen[str]) -> int:
    """The victim's process number, once it has begun."""
    # open for writing, too, or select() sees the end of the file at once
    file = os.open(pipe, os.O_RDWR)
    try:
        while not select.select([file], [], [], 0.1)[0]:
            if job.poll() is not None:
                raise RuntimeError(f"the job ended before it began: {job.communicate()}")
        return int(os.read(file, 100))
    finally:
        os.close(file)


class _Watched:
    """A rank whose last operation and shared memory can still be read after it has ended."""

    def __init__(self, pid: int) -> None:
        self.memory = _shared_memory(pid)
        self._page = -1
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # the descriptor was closed meanwhile
                if os.readlink(entry.path).startswith(f"/memfd:{status.RANK}"):
                    self._page = os.open(entry.path, os.O_RDONLY)

    def last_operation(self) -> str:
        return status.last_begun(status.page_in(f"/proc/self/fd/{self._page}"))

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._page)


def _shared_memory(pid: int | str) -> set[tuple[str, str]]:
    """The files in memory that a process has mapped: number and name."""
    lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    fields = [line.split(maxsplit=5) for line in lines if "/memfd:" in line or "/dev/shm/" in line]
    return {(number, name) for *_, number, name in fields}


def _is_half_written(result: pathlib.Path) -> bool:
    """Each turn's result is one number, so two different numbers mean an unfinished turn."""
    values = np.fromfile(result)
    return len(np.unique(values[: len(values) - np.argmax(values[::-1] != 0)])) > 1


def _remains_of(memory: set[tuple[str, str]]) -> list[str]:
    """The files in memory that still have a name, or a process that has mapped them."""
    found = [name for _, name in memory if os.path.exists(name)]
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # the process has ended
            found += [f"process {process}: {name}" for _, name in memory & _shared_memory(process)]
    return found


def record(kill: Kill) -> None:
    """Record a kill, if a record is requested."""
    seconds = max((one["seconds"] for one in kill.survivors.values()), default=kill.over_s)
    seeing.write(
        {
            "part": "kills",
            "call": DOINGS[kill.doing].title,
            "path": kill.path,
            "moment_us": round(kill.moment_us),
            "inside": kill.inside,
            "operation": kill.operation,
            "half_written": kill.half_written,
            "errors": sorted({one["error"] for one in kill.survivors.values()}),
            "by_launcher": kill.in_mpich,
            "slowest_seconds": round(kill.over_s if kill.doing == "finalize" else seconds, 3),
            "status": kill.seen.status,
        }
    )
