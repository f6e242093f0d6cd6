"""The tables of docs/train.md, from the newest record of `gradred train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradred_lab import pictures
from gradred_lab.train import report, table
from gradred_lab.train.page import Table, markdown

SCHEMA = "gradred-train/1"
SHOWN = ("samples/s", "spread", "ms/step", "speed-up", "efficiency", "exchange ms", "check")
NOTHING = "No record of a run is kept here yet.\n"

Record = dict[str, Any]


def newest(folder: Path) -> tuple[str, Record] | None:
    """File name and content of the newest record."""
    found = []
    for path in sorted(folder.glob("train-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("schema") == SCHEMA:
            found.append((record["date"], path.name, record))
    return max(found)[1:] if found else None


def printed(folder: Path) -> str:
    """What the command prints of the first model."""
    found = newest(folder)
    if found is None:
        return NOTHING
    rows = [row for row in found[1]["rows"] if row["ranks"] > 1]
    return f"\n```\n{table.lines(rows[0]).strip()}\n```\n\n"


def page(folder: Path) -> str:
    """Where and when, and a row for each model and peer; then what was simulated."""
    found = newest(folder)
    if found is None:
        return NOTHING
    name, record = found
    return f"\n{where(name, record)}\n\n{results(record)}\n{simulated(record)}\n"


def where(name: str, record: Record) -> str:
    """The machine and the protocol, with a link to the record."""
    job = record["jobs"][max(record["jobs"], key=int)]
    protocol = record["arguments"]["protocol"]
    reduced = "; ".join(dict.fromkeys(row["reduced"] or "as published" for row in record["rows"]))
    busy = report.other_cores(record)
    others = f" Other programs used up to {busy:.1f} cores at the same time." * (busy > 0.1)
    return (
        f"{job['ranks']} ranks, {job['machine']['cpu']}, {job['machine']['cores']} cores, PyTorch "
        f"{job['versions']['torch']}; skip {protocol['skip']}, steps {protocol['steps']}, repeats "
        f"{protocol['repeats']}; models: {reduced}; {record['date'][:10]}; "
        f"[the record](../benchmarks/results/{name}).{others}"
    )


def results(record: Record) -> str:
    columns = [column for column in table.COLUMNS if column.title in SHOWN]
    rows = [
        [table.short_text(row), peer, *(column.cell(one) for column in columns)]
        for row in record["rows"]
        for peer, one in row["summary"].items()
    ]
    titles = ["cell", "peer", *(column.title for column in columns)]
    return markdown([Table(titles, rows, left=2)])


def simulated(record: Record) -> str:
    """One line for each model: its fastest peer on the largest number of hosts."""
    found = record["simulated"]
    if "why_not" in found:
        return ""
    most = max(row["hosts"] for row in found["rows"])
    candidates = [row for row in found["rows"] if row["hosts"] == most]
    cells = dict.fromkeys(str(row["cell"]) for row in candidates)
    fastest = [
        max(
            (row for row in candidates if str(row["cell"]) == cell),
            key=lambda row: float(row["samples_per_s"]),
        )
        for cell in cells
    ]
    rows = [
        [
            row["cell"]["model"],
            row["peer"],
            *table.simulated_cells(row),
        ]
        for row in fastest
    ]
    simulated = [f"{title}, simulated" for title in ("samples/s", "ms/step", "efficiency")]
    titles = ["model", "fastest peer", *simulated]
    here = found["error_here"]
    error = (
        f"{most} hosts with {found['net']}, **simulated**. Error of the model on this host: median "
        f"{here['median_percent']:.0f} %, largest {here['largest_percent']:.0f} % of "
        f"{here['steps']} {here['how']}; between hosts {found['error_between_hosts']}."
    )
    return f"{error}\n\n{markdown([Table(titles, rows, left=2)])}"


def picture(folder: Path) -> str:
    """The efficiency of each peer of the newest record, as bars."""
    found = newest(folder)
    rows = [
        pictures.Bar(
            f"{row['cell']['model']}, {peer}",
            {"efficiency, %": 100 * one["efficiency"]["median"]},
            f"{one['efficiency']['median']:.0%}",
        )
        for row in (found[1]["rows"] if found else [])
        for peer, one in row["summary"].items()
        if row["ranks"] > 1 and "efficiency" in one
    ]
    notes = ["Measured: throughput over that of one process, over the number of ranks."]
    return pictures.bars("Efficiency of data-parallel training, reduced models", notes, rows)
