"""What calls have cost: the table on rank 0 and the files of `GRADRED_PROFILE`, at exit.

The extension counts (csrc/comm/profile.h); here rows are merged, worded and written. Nothing here
communicates: when a program ends, peers may be gone.

The JSON record (`schema` = "gradred-profile/1"), one per rank; times in seconds:

    rank, size        in MPI_COMM_WORLD
    host, date, versions{gradred, mpi}
    wall_s            since the first call
    exposed_s         of that in calls of gradred and not hidden, set_up{} included
    share             exposed_s / wall_s
    set_up            {communicators, seconds}
    rows              [{kind, op, dtype, mode, max_bytes, calls, bytes, timed_calls,
                        time_s, exposed_s, skew, mpi}], the most exposed first
      op              null where nothing is reduced
      mode            "blocking", "started" or "persistent"
      max_bytes       calls of up to so many bytes, and of more than half of that
      timed_calls     of the calls; time_s holds an estimate of the others
      skew            null, or {samples, mean_s, longest_s, slowest_rank,
                                ranks[{rank, mean_late_s, last}]}
      mpi             null, or {samples, gradred_s, mpi_s, total_s, sampling_s}: the shortest call
                      of each in the samples, what the MPI would have made of time_s, all samples
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gradred import _core, _destinations, _files, config
from gradred.errors import UsageError, explain

if TYPE_CHECKING:
    from gradred._core import _ProfileRow

SCHEMA = "gradred-profile/1"
MOST_ROWS = 30  # of the table

_REDUCE = ("allreduce", "reduce_scatter_block", "allreduce_many")
_wanted: str | None = None  # the last value of the knob that asked for a profile

Row = dict[str, Any]


def configure(wanted: str | None) -> None:
    """Keep the value of the knob `profile` for the end; None changes nothing.

    Raises:
        UsageError: it names a file that cannot be written.
    """
    global _wanted
    if wanted not in (None, config.PROFILE_TABLE):
        wanted = _destinations.require("profile", str(wanted))
    _wanted = wanted or _wanted


def report() -> None:
    """At exit: the table to stderr on rank 0, and each rank's file where one is named.

    Raises:
        UsageError: the file cannot be written.
    """
    counted = _core.profile()
    if not counted["rows"] and _wanted is None:
        return  # rank 0, which decides, has asked for none
    record = describe(counted)
    if record["rank"] == 0:
        sys.stderr.write(table(record))
        sys.stderr.flush()
    if _wanted not in (None, config.PROFILE_TABLE):
        write(record, _core.path_of_rank(str(_wanted), record["rank"]))


def write(record: dict[str, Any], path: str) -> None:
    """Write one rank's record."""
    try:
        with open(_files.create(path), "w", encoding="utf-8") as file:
            file.write(json.dumps(record, indent=1) + "\n")
    except OSError as error:
        remedy = "Name a file in a folder that exists and is writable"
        asked = f"the profile '{path}'"
        raise UsageError(explain(asked, f"cannot be written ({error.strerror})", remedy)) from None


def describe(counted: _core._Profile) -> dict[str, Any]:
    """The record of this rank."""
    rows = sorted((_described(rows) for rows in _by_name(counted["rows"])), key=_most_exposed)
    set_up = {"communicators": counted["set_ups"], "seconds": counted["set_up_s"]}
    exposed = counted["set_up_s"] + sum(row["exposed_s"] for row in rows)
    wall = counted["wall_s"]
    return {
        "schema": SCHEMA,
        "rank": counted["rank"],
        "size": counted["size"],
        "host": os.uname().nodename,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "gradred": sys.modules["gradred"].__version__,  # by now the package is complete
            "mpi": _core.mpi_version().splitlines()[0],
        },
        "wall_s": wall,
        "exposed_s": exposed,
        "share": exposed / wall if wall else 0.0,
        "set_up": set_up,
        "rows": rows,
    }


def _by_name(rows: Iterable[_ProfileRow]) -> Iterable[list[_ProfileRow]]:
    """Rows of one name and class together: p() and Start of a persistent operation are two."""
    groups: dict[tuple[object, ...], list[_ProfileRow]] = {}
    for row in rows:
        key = (row["kind"], row["op"], row["dtype"], row["mode"], row["max_bytes"])
        groups.setdefault(key, []).append(row)
    return groups.values()


def _described(rows: Sequence[_ProfileRow]) -> Row:
    first = rows[0]
    time_s = sum(row["time_s"] for row in rows)
    calls = sum(row["calls"] for row in rows)
    return {
        "kind": first["kind"],
        "op": first["op"] if first["kind"] in _REDUCE else None,
        "dtype": first["dtype"],
        "mode": first["mode"],
        "max_bytes": first["max_bytes"],
        "calls": calls,
        "bytes": sum(row["bytes"] for row in rows),
        "timed_calls": sum(row["timed_calls"] for row in rows),
        "time_s": time_s,
        "exposed_s": sum(row["exposed_s"] for row in rows),
        "skew": _skew(rows),
        "mpi": _beside_mpi(rows, time_s, calls),
    }


def _skew(rows: Sequence[_ProfileRow]) -> dict[str, Any] | None:
    samples = sum(row["looks"] for row in rows)
    if samples == 0:
        return None
    late: dict[int, float] = {}
    last: dict[int, int] = {}
    for row in rows:
        for rank, seconds, times in row["ranks"]:
            late[rank] = late.get(rank, 0.0) + seconds
            last[rank] = last.get(rank, 0) + times
    ranks = [
        {"rank": rank, "mean_late_s": late[rank] / samples, "last": last[rank]}
        for rank in sorted(late)
    ]
    return {
        "samples": samples,
        "mean_s": sum(row["skew_s"] for row in rows) / samples,
        "longest_s": max(row["longest_skew_s"] for row in rows),
        "slowest_rank": max(sorted(late), key=lambda rank: late[rank]),
        "ranks": ranks,
    }


def _beside_mpi(rows: Sequence[_ProfileRow], time_s: float, calls: int) -> dict[str, Any] | None:
    """Waiting for late ranks is the same under every MPI: only the rest is replaced."""
    samples = sum(row["compared"] for row in rows)
    if samples == 0:
        return None
    own, mpi = (min(row[key] for row in rows if row["compared"]) for key in ("own_s", "mpi_s"))
    return {
        "samples": samples,
        "gradred_s": own,
        "mpi_s": mpi,
        "total_s": max(0.0, time_s + calls * (mpi - own)),
        "sampling_s": sum(row["comparing_s"] for row in rows),
    }


def _most_exposed(row: Row) -> tuple[float, float, str]:
    return (-row["exposed_s"], -row["time_s"], name(row))


# ---- the table --------------------------------------------------------------------------------

_COLUMNS = ("up to", "calls", "data", "time", "exposed", "skew", "slowest", "by MPI")
_LEGEND = (
    "time: in calls, or from start to end; exposed: the part in which the program waited;\n"
    "skew: from the first rank's coming to the last's, slowest: the rank that was latest and how\n"
    "often it was last; by MPI: the time had the MPI done it. -: too few calls"
)


def table(record: dict[str, Any]) -> str:
    """The table, its legend, and the share of the wall time; ends with a newline."""
    wall, place = seconds(record["wall_s"]), f"rank {record['rank']} of {record['size']}"
    head = f"gradred profile of {place}, {wall} since its first call"
    if not record["rows"]:
        return f"{head}: no call has ended\n"
    shown, more = record["rows"][:MOST_ROWS], len(record["rows"]) - MOST_ROWS
    rows = [("call", *_COLUMNS), *((name(row), *_cells(row)) for row in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [head]
    for label, *cells in rows:
        right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append(" ".join([label.ljust(widths[0]), *right]))
    if more > 0:
        lines.append(f"and {more} rows of less: GRADRED_PROFILE=FILE writes them all")
    share = f"{100 * record['share']:.1f} % of the time since the first call"
    taken = f"{seconds(record['exposed_s'])}, {seconds(record['set_up']['seconds'])} of it set-up"
    lines += [_LEGEND, f"{share} went into gradred, not hidden ({taken})"]
    return "\n".join(lines) + "\n"


def name(row: Row) -> str:
    """What was called, with the mode unless it is blocking."""
    words = [row["kind"].removesuffix("_block"), *([row["op"]] if row["op"] else []), row["dtype"]]
    text = " ".join(words)
    return text if row["mode"] == "blocking" else f"{text}, {row['mode']}"


def _cells(row: Row) -> list[str]:
    skew, mpi = row["skew"], row["mpi"]
    slowest = "-"
    if skew:
        rank = skew["slowest_rank"]
        (last,) = [each["last"] for each in skew["ranks"] if each["rank"] == rank]
        slowest = f"{rank} {100 * last / skew['samples']:.0f}%"
    return [
        size(row["max_bytes"]),
        str(row["calls"]),
        size(row["bytes"]),
        seconds(row["time_s"]),
        seconds(row["exposed_s"]),
        seconds(skew["mean_s"]) if skew else "-",
        slowest,
        seconds(mpi["total_s"]) if mpi else "-",
    ]


def seconds(value: float) -> str:
    """A time in three digits, with its unit."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= 0.9995 * factor:
            return f"{_three_digits(value / factor)} {unit}"
    return f"{value * 1e9:.0f} ns"


def size(value: int) -> str:
    """A number of bytes in three digits, with its unit."""
    if value < 1024:
        return f"{value} B"
    scaled, units = value / 1024, ["KiB", "MiB", "GiB", "TiB", "PiB"]
    while scaled >= 999.5 and len(units) > 1:
        scaled /= 1024
        units.pop(0)
    return f"{_three_digits(scaled)} {units[0]}"


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    text = f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".")
