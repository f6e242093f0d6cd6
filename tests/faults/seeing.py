"""Jobs in which something goes wrong, what was seen of them, and the record of it.

With the variable FAULTS_RECORD naming a file, what was seen is written there:
tools/gen_faults_docs.py makes docs/faults.md of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from gradred import launch

RANKS = 4
TIMEOUT = 1.0  # GRADRED_TIMEOUT of the jobs, seconds
GRACE = 2.0  # of gradred run

written: set[pathlib.Path] = set()  # what jobs have left: where their ranks were at a timeout


@dataclasses.dataclass
class Seen:
    """How a job ended."""

    status: int
    seconds: float
    reports: dict[int, dict[str, Any]]
    """What the ranks printed, by rank."""
    stderr: str

    @property
    def last_line(self) -> str:
        """What `gradred run` said last."""
        lines = self.stderr.splitlines()
        return lines[-1] if lines else ""


def job(
    program: pathlib.Path,
    *arguments: str,
    ranks: int = RANKS,
    inside: Sequence[str] = (),
    **variables: str,
) -> Seen:
    """Run a program as a job, below the command `inside`; its ranks report in lines of JSON."""
    command = [*inside, sys.executable, "-m", "gradred", "run", "-np", str(ranks)]
    command += ["--grace", str(GRACE), sys.executable, str(program), *arguments]
    environment = {**os.environ, "GRADRED_TIMEOUT": str(TIMEOUT)} | variables
    begin = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    seconds = time.monotonic() - begin
    left = re.findall(r"Where each rank is: ([^\s\"\\]+)", done.stdout + done.stderr)
    written.update(map(pathlib.Path, left))
    return Seen(done.returncode, seconds, reports_in(done.stdout.splitlines()), done.stderr)


def reports_in(lines: Sequence[str]) -> dict[int, dict[str, Any]]:
    """The ranks' reports among lines of output, by rank."""
    reports = {}
    for line in lines:
        if "{" in line:
            report = json.loads(line[line.index("{") :])
            reports[report["rank"]] = report
    return reports


def record(
    fault: str, call: str, path: str, seen: Seen, *, part: str = "ranks", saw: str = ""
) -> None:
    """Note what was seen, if a record is wanted.

    Args:
        fault: what went wrong.
        call: what the ranks were doing.
        path: how their data went, or where it happened.
        seen: what came of it.
        part: of the page.
        saw: what the ranks got, where it was no error.
    """
    name = os.environ.get("FAULTS_RECORD")
    if not name:
        return
    failed = [one for one in seen.reports.values() if one["error"]]
    first = min(failed, key=lambda report: float(report["seconds"]), default=None)
    slowest = max((one["seconds"] for one in seen.reports.values()), default=seen.seconds)
    entry = {
        "mpi": str(launch.find_mpi().family),
        "version": launch.find_mpi().version,
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
    with open(name, "a") as file:
        print(json.dumps(entry), file=file)
