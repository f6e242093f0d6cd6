"""The tables of docs/schemes.md, from the newest records of `gradred schemes`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gradred_lab.schemes import report

NOTHING = "No record of a run is kept here yet.\n"


def table(begin: str) -> Callable[[Path], str]:
    """What writes the table of the newest record whose file name begins so."""

    def written(folder: Path) -> str:
        records = [json.loads(path.read_text()) for path in folder.glob(f"{begin}*.json")]
        if not records:
            return NOTHING
        rows = max(records, key=lambda record: str(record["date"]))["rows"]
        width = max(len(report.name(row)) for row in rows) + 1
        lines = [report.titles(width), *(report.line(row, width) for row in rows)]
        return "\n".join(["", "```", *lines, "```", "", ""])

    return written


TABLES = {
    "schemes": table("schemes-mpich"),
    "schemes, compression": table("schemes-compression"),
    "schemes, a late worker": table("schemes-straggler"),
}
"""By the names of the marks in the page."""
