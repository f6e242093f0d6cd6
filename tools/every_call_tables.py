"""The table of docs/every-call.md from the newest records of benchmarks/every_call.py."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]

MOST = 6  # cells below the limit that a row names
WORDS = {"nothing": "nothing", "arrivals": "waits up to 2 ms", "work": "works on 4 MiB"}
NAMES = {"f4": "float32", "f8": "float64", "i8": "int64", "c16": "complex128"}
# Calls that the MPI carries out on both sides, so that their ratios show what noise is.
OF_THE_MPI = ("Comm.Reduce", "Comm.Gather", "Comm.Scatter", "Comm.Alltoall", "Comm.Ibcast, Wait")
REDUCTIONS = ("educe", "can")  # Allreduce, Reduce, Reduce_scatter_block, Scan, Exscan


def table(folder: Path) -> str:
    """A row for each record: the newest of each MPI, layout, types, lengths and way of calling."""
    rows = [line(name, record) for name, record in newest(folder).items()]
    head = "MPI | ranks | a rank, before each call | types | up to | mean | of reductions"
    below = "the MPI's own | below 0.95 | surely | below 0.95, those surely first"
    dashes = "---|---|---|---|---:|---:|---:|---|---:|---:|---"
    return "\n".join(["", f"| {head} | {below} |", f"|{dashes}|", *rows, ""])


def newest(folder: Path) -> dict[str, Record]:
    """File name and record of the newest measurement of each kind."""
    found: dict[tuple[object, ...], tuple[str, Record]] = {}
    for path in sorted(folder.glob("every-call-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        key = (between(record), mpi(record), layout(record), types(record), longest(record))
        if key not in found or record["date"] >= found[key][1]["date"]:
            found[key] = (path.name, record)
    return dict(found[key] for key in sorted(found, key=str))


def between(record: Record) -> str:
    """What a rank does before each call; the first schema had no choice."""
    return str(record["arguments"].get("between", "nothing"))


def types(record: Record) -> str:
    names = [NAMES[name] for name in record["arguments"].get("dtypes", ["f4"])]
    return ", ".join(names)


def longest(record: Record) -> str:
    """The longest of its arrays; a record of long arrays alone stands beside one of short ones."""
    return amount(max(row["bytes"] for row in record["rows"]))


def layout(record: Record) -> str:
    """The number of ranks of each host."""
    on_hosts = record.get("ranks_on_hosts") or [record["ranks"]]
    return " + ".join(map(str, on_hosts))


def mpi(record: Record) -> str:
    words = str(record["versions"]["mpi"]).replace("Version: ", "").replace("Library ", "")
    for name in ("Intel MPI", "Intel(R) MPI", "Open MPI", "MPICH"):
        if name in words:
            return name.replace("(R)", "")
    return words.split()[0]


def mean(rows: Sequence[Record]) -> str:
    return f"{statistics.geometric_mean(row['ratio'] for row in rows):.2f}" if rows else "-"


def span(rows: Sequence[Record]) -> str:
    """The least and the greatest ratio of calls that are the MPI's on both sides."""
    found = [row["ratio"] for row in rows if row["call"] in OF_THE_MPI]
    return f"{min(found):.2f} to {max(found):.2f}" if found else "-"


def cell(row: Record) -> str:
    """`Comm.Bcast` 8 B 0.61."""
    name = row.get("dtype", "f4")
    kind = "" if name == "f4" else f" {NAMES[name]}"
    return f"`{row['call']}`{kind} {amount(row['bytes'])} {row['ratio']:.2f}"


def amount(nbytes: int) -> str:
    units = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
    size, unit = next(one for one in units if nbytes >= one[0])
    return f"{nbytes // size} {unit}"


def line(name: str, record: Record) -> str:
    rows, limit = record["rows"], record.get("limit", 0.95)
    low = [row for row in rows if row["ratio"] < limit]
    low.sort(key=lambda row: (row["ratio_p90"] >= limit, row["ratio"]))
    surely = sum(row["ratio_p90"] < limit for row in low)
    of_reductions = [row for row in rows if any(part in row["call"] for part in REDUCTIONS)]
    named = "; ".join(map(cell, low[:MOST])) + (" ..." if len(low) > MOST else "")
    link = f"[{mpi(record)}](../benchmarks/results/{name})"
    cells = [link, layout(record), WORDS[between(record)], types(record), longest(record)]
    cells += [mean(rows), mean(of_reductions), span(rows)]
    cells += [f"{len(low)} of {len(rows)}", str(surely), named]
    return f"| {' | '.join(cells)} |"
