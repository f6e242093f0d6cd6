"""Jobs in which something fails, what their ranks reported, and the record of it.

If the variable FAULTS_RECORD names a file, the observations are appended to it.
tools/gen_faults_docs.py makes docs/faults.md from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import stepped

from gradred import launch

RANKS = 4
TIMEOUT = 1.0  # GRADRED_TIMEOUT of the jobs, in seconds of their clock, which ranks may step
_TESTS = pathlib.Path(__file__).parents[1]  # the folder in which ranks find `stepped`
GRACE = 2.0  # --grace of gradred run

_MARK = "JOB_OF_A_FAULT_TEST"  # a variable that each process of a job inherits

written: set[pathlib.Path] = set()  # files in which jobs wrote where their ranks were at a timeout


@dataclasses.dataclass
class Seen:
    """How a job ended."""

    status: int
    seconds: float
    reports: dict[int, dict[str, Any]]
    """What each rank printed, by rank."""
    stderr: str

    @property
    def last_line(self) -> str:
        """The last line that `gradred run` printed."""
        lines = self.stderr.splitlines()
        return lines[-1] if lines else ""


def job(
    program: pathlib.Path,
    *arguments: str,
    ranks: int = RANKS,
    inside: Sequence[str] = (),
    **variables: str,
) -> Seen:
    """Run a program as a job, below the command `inside`; its ranks report in lines of JSON.

    Fails if a process of the job is left, because such a process would hold its shared memory.
    """
    command = [*inside, sys.executable, "-m", "gradred", "run", "-np", str(ranks)]
    command += ["--grace", str(GRACE), sys.executable, str(program), *arguments]
    path = os.pathsep.join(filter(None, [str(_TESTS), os.environ.get("PYTHONPATH")]))
    clock = stepped.SteppedClock()  # of this job alone; its ranks may step it
    given = {"GRADRED_TIMEOUT": str(TIMEOUT), stepped.VARIABLE: clock.path, "PYTHONPATH": path}
    environment, mark = marked(given | variables)
    begin = time.monotonic()
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    finally:
        clock.remove()
    seconds = time.monotonic() - begin
    left = re.findall(r"Where each rank is: ([^\s\"\\]+)", done.stdout + done.stderr)
    written.update(map(pathlib.Path, left))
    assert not processes_of(mark), "what the job has left behind"
    return Seen(done.returncode, seconds, reports_in(done.stdout.splitlines()), done.stderr)


def marked(variables: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The variables of a job, and the mark by which `processes_of` recognises its processes."""
    mark = uuid.uuid4().hex
    return {**os.environ, **variables, _MARK: mark}, mark


def processes_of(mark: str) -> list[str]:
    """The running processes of a job, wherever they are; zombies have no variables."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # the process belongs to another user, or has ended
            if f"{_MARK}={mark}".encode() in pathlib.Path(f"/proc/{process}/environ").read_bytes():
                words = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
                found.append(f"process {process}: {b' '.join(words).decode(errors='replace')}")
    return found


def reports_in(lines: Sequence[str]) -> dict[int, dict[str, Any]]:
    """The ranks' reports in lines of output, by rank."""
    reports = {}
    for line in lines:
        if "{" in line:
            report = json.loads(line[line.index("{") :])
            reports[report["rank"]] = report
    return reports


def record(
    fault: str, call: str, path: str, seen: Seen, *, part: str = "ranks", saw: str = ""
) -> None:
    """Record what was observed, if a record is requested.

    Args:
        fault: what failed.
        call: what the ranks were doing.
        path: how their data travelled, or where the fault happened.
        seen: the outcome.
        part: section of the page.
        saw: what the ranks got, if it was not an error.
    """
    failed = [one for one in seen.reports.values() if one["error"]]
    first = min(failed, key=lambda report: float(report["seconds"]), default=None)
    slowest = max((one["seconds"] for one in seen.reports.values()), default=seen.seconds)
    write(
        {
            "part": part,
            "fault": fault,
            "call": call,
            "path": path,
            "errors": sorted({report["error"] for report in failed}),
            "saw": saw,
            "slowest_seconds": slowest,
            "status": seen.status,
            "message": first["text"] if first else seen.last_line,
        }
    )


def write(entry: dict[str, Any]) -> None:
    """Add to the record, if one is requested."""
    if name := os.environ.get("FAULTS_RECORD"):
        mpi = {"mpi": str(launch.find_mpi().family), "version": launch.find_mpi().version}
        with open(name, "a") as file:
            print(json.dumps(mpi | entry), file=file)
