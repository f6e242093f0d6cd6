"""A whole run: one job for each number of ranks, then the simulation and the report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from gradred._util import cpu
from gradred.errors import UsageError
from gradred_lab.train import report, simulated
from gradred_lab.train.record import Record
from gradred_lab.train.settings import Settings

RESULTS = "results.json"

Start = Callable[[int, str], int]
"""Starts so many ranks with `as_rank` of a text; returns the exit status."""


def run(settings: Settings, folder: Path, *, fresh: bool, start: Start) -> int:
    """Measure what the record lacks, and write the report. Returns the exit status.

    Raises:
        UsageError: the folder holds a record of something else.
    """
    path = folder.absolute() / RESULTS
    record = Record.of(path, settings, fresh=fresh)
    if record.values["rows"]:
        print(f"# continues {path}", file=sys.stderr)
    record.write()
    for ranks in settings.ranks:
        if not record.pending(settings, ranks):
            continue
        status = start(ranks, _text(settings, path))
        record = Record.of(path, settings)
        if record.pending(settings, ranks):
            return _incomplete(record, settings, folder, status)
    record.values["simulated"] = simulated.simulate(record.values, settings)
    record.values["complete"] = True
    record.write()
    _report(record, settings, folder)
    return 0 if _is_right(record) else 1


def _report(record: Record, settings: Settings, folder: Path) -> None:
    for written in report.write(record.values, settings, folder):
        print(f"# {written}")


def _incomplete(record: Record, settings: Settings, folder: Path, status: int) -> int:
    if status != 0:
        if record.values["rows"]:
            record.values["simulated"] = simulated.simulate(record.values, settings)
            _report(record, settings, folder)
        print("# the same command continues this run", file=sys.stderr)
        return status
    found = "the ranks have written nothing there; perhaps rank 0 runs on another host"
    remedy = "Name this host first, or a folder that all hosts share"
    raise UsageError(str(record.path), found, remedy)


def _is_right(record: Record) -> bool:
    peers = [one for row in record.values["rows"] for one in row["summary"].values()]
    return all(one.get("right", True) for one in peers)


def _text(settings: Settings, path: Path) -> str:
    return json.dumps(
        {
            "settings": settings.record(),
            "path": str(path),
            "on_terminal": sys.stderr.isatty(),
            "load": cpu.load(),
        }
    )


def as_rank(text: str) -> int:
    """Measure as one rank of a job; `text` comes from `run`."""
    from gradred_lab.train import job  # imports mpi4py.MPI, which calls MPI_Init

    given = json.loads(text)
    settings = Settings.from_record(given.pop("settings"))
    return job.run(settings, Path(given.pop("path")), **given)
