"""The record of a run (`results.json`), which is also the state from which it continues.

schema      "gradred-train/1"
complete    whether all of the matrix is measured
date        of the last change
arguments   what was asked for (`Settings`)
jobs        by number of ranks: hosts, machine, versions, topology, times of an allreduce
rows        one per cell and number of ranks: the model, `repeats`, and per peer a `summary`
simulated   what the simulator says of other numbers of hosts, and its error
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import statistics
from pathlib import Path
from typing import Any

from gradred.bench.rank_zero import write_so_far
from gradred.errors import UsageError
from gradred_lab.train import use
from gradred_lab.train.framework import Cell
from gradred_lab.train.settings import Settings

SCHEMA = "gradred-train/1"
_SAME = ("cpu", "cores", "memory_bytes")  # of a machine on which a run may continue
_OF_THE_REPORT = ("simulated_hosts", "net")  # arguments by which nothing is measured

_NEEDED = {"arguments": dict, "jobs": dict, "rows": list}
_OF_A_ROW = {"cell": dict, "ranks": int, "hosts": int, "repeats": list, "summary": dict}

Row = dict[str, Any]


class Record:
    """Reads, continues and writes one record.

    Args:
        path: of the file.
        values: its content.
    """

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path, self.values = path, values

    @classmethod
    def of(cls, path: Path, settings: Settings, *, fresh: bool = False) -> Record:
        """The record in a file that a run with these settings has begun, or a new one.

        Raises:
            UsageError: the file holds anything else.
        """
        arguments = settings.record()
        if path.exists() and not fresh:
            found = cls(path, _read(path))
            found._require(arguments)
            found.values["arguments"] = arguments
            return found
        values = {"schema": SCHEMA, "complete": False, "date": _now(), "arguments": arguments}
        return cls(path, values | {"jobs": {}, "rows": [], "simulated": None})

    def _require(self, arguments: dict[str, Any]) -> None:
        before = self.values["arguments"]
        for name, value in arguments.items():
            if name not in _OF_THE_REPORT and before.get(name) != value:
                found = (
                    f"its run had {name} {_short(before.get(name))}, and this is {_short(value)}"
                )
                remedy = "Ask for the same, name another folder with --out, or add --fresh"
                raise UsageError(str(self.path), found, remedy)

    def begin_job(self, ranks: int, system: dict[str, Any]) -> None:
        """Note the system of a job, or make sure that it is that of the job before.

        Raises:
            UsageError: these ranks run on another machine or with other versions.
        """
        before = self.values["jobs"].get(str(ranks))
        if before is None:
            self.values["jobs"][str(ranks)] = system
            return
        for part, names in (("machine", _SAME), ("versions", tuple(system["versions"]))):
            for name in names:
                old, new = before[part].get(name), system[part].get(name)
                if old != new:
                    found = f"it began with {name} {old}, and here is {new}"
                    remedy = "Name another folder with --out, or add --fresh"
                    raise UsageError(str(self.path), found, remedy)

    def row(self, cell: Cell, ranks: int) -> Row | None:
        """The row of a cell on a number of ranks, if it was begun."""
        key = dataclasses.asdict(cell)
        for row in self.values["rows"]:
            if row["cell"] == key and row["ranks"] == ranks:
                found: Row = row
                return found
        return None

    def pending(self, settings: Settings, ranks: int) -> list[tuple[Cell, int]]:
        """The cells that lack repeats, each with the number of those that it has."""
        found = []
        for cell in settings.cells():
            row = self.row(cell, ranks)
            done = 0 if row is None else len(row["repeats"])
            if done < settings.protocol.repeats:
                found.append((cell, done))
        return found

    def begin_row(self, cell: Cell, ranks: int, facts: dict[str, Any]) -> Row:
        """The row of a cell; `facts` are noted if it is new."""
        row = self.row(cell, ranks)
        if row is None:
            hosts = self.values["jobs"][str(ranks)]["hosts"]
            row = {"cell": dataclasses.asdict(cell), "ranks": ranks, "hosts": hosts, **facts}
            row |= {"repeats": [], "summary": {}}
            self.values["rows"].append(row)
        return row

    def add(self, row: Row, blocks: dict[str, Any]) -> None:
        """Add a repeat to a row, and bring its summary up to date."""
        row["repeats"].append({"date": _now(), "peers": blocks})
        row["summary"] = summary(row)

    def write(self) -> None:
        """Replace the file; it is complete at any time."""
        self.values["date"] = _now()
        write_so_far(str(self.path), self.values, last=True)


def summary(row: Row) -> dict[str, Any]:
    """Per peer the medians over the repeats, with the least and the greatest value.

    `speed_up` is the throughput over that of `single` in the same repeat, `efficiency` that by the
    number of ranks, `exchange_ms` the time of a step beyond that of `compute`.
    """
    found: dict[str, Any] = {}
    for peer in row["repeats"][0]["peers"]:
        blocks = [one["peers"][peer] for one in row["repeats"]]
        mine: dict[str, Any] = {}
        for name in ("samples_per_s", "step_ms", "p50_ms", "p90_ms", "p99_ms"):
            mine[name] = _spread([one[name] for one in blocks])
        mine |= _compared(row, peer)
        if "check" in blocks[0]:
            mine["right"] = all(one["check"]["right"] for one in blocks)
        mine["use"] = use.mean([one["use"] for one in blocks])
        found[peer] = mine
    return found


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _compared(row: Row, peer: str) -> dict[str, Any]:
    """Against one process, and against ranks that exchange nothing, repeat by repeat."""
    repeats = [one["peers"] for one in row["repeats"]]
    found: dict[str, Any] = {}
    if "single" in repeats[0] and peer != "single":
        ups = [one[peer]["samples_per_s"] / one["single"]["samples_per_s"] for one in repeats]
        found["speed_up"] = _spread(ups)
        found["efficiency"] = _spread([one / row["ranks"] for one in ups])
    if "compute" in repeats[0] and "check" in repeats[0][peer]:
        beyond = [one[peer]["step_ms"] - one["compute"]["step_ms"] for one in repeats]
        found["exchange_ms"] = _spread(beyond)
    return found


def _read(path: Path) -> dict[str, Any]:
    remedy = "Name another folder with --out, or add --fresh to replace it"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(str(path), f"cannot be read ({error.strerror})", remedy) from None
    except UnicodeDecodeError as error:
        raise UsageError(str(path), f"it is not text ({error})", remedy) from None
    except json.JSONDecodeError as error:
        found = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise UsageError(str(path), found, remedy) from None
    schema = values.get("schema") if isinstance(values, dict) else None
    if schema != SCHEMA:
        found = f"its schema is {schema!r}, and this command writes {SCHEMA!r}"
        raise UsageError(str(path), found, remedy)
    lacking = _lacking(values)
    if lacking:
        raise UsageError(str(path), f"it lacks {', '.join(lacking)}", remedy)
    found_values: dict[str, Any] = values
    return found_values


def _lacking(values: dict[str, Any]) -> list[str]:
    """What is not in a record although it is read; the first row that lacks something."""
    found = [name for name, kind in _NEEDED.items() if not isinstance(values.get(name), kind)]
    for number, row in enumerate([] if found else values["rows"]):
        if not isinstance(row, dict):
            return [f"rows[{number}]"]
        found = [name for name, kind in _OF_A_ROW.items() if not isinstance(row.get(name), kind)]
        if found:
            return [f"rows[{number}].{name}" for name in found]
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
