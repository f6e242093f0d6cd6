"""The table that is printed while a run goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradred import __version__
from gradred_lab.train.settings import Settings

Summary = dict[str, Any]


class Column(NamedTuple):
    """One column of a table of peers."""

    title: str
    width: int
    cell: Callable[[Summary], str]


def _of(name: str, digits: int, percent: bool = False) -> Callable[[Summary], str]:
    def cell(summary: Summary) -> str:
        if name not in summary:
            return "-"
        value = summary[name]["median"]
        return f"{value:.1%}" if percent else f"{value:.{digits}f}"

    return cell


def spread(summary: Summary) -> str:
    """The distance of the greatest from the least throughput, in percent of the median."""
    one = summary["samples_per_s"]
    return f"{(one['high'] - one['low']) / one['median']:.1%}"


def rounded(value: float, error: float) -> str:
    """A value to the first digit of its error, and that: `9,000 ± 400`; one digit at least."""
    if error <= 0:
        return f"{value:,.4g}"
    place = math.floor(math.log10(error))
    if round(error, -place) >= 10 ** (place + 1):
        place += 1
    digits = max(0, -place)
    shown = round(value, -min(place, math.floor(math.log10(value))))
    return f"{shown:,.{digits}f} ± {round(error, -place):,.{digits}f}"


def simulated_cells(row: dict[str, Any]) -> list[str]:
    """Throughput, latency and efficiency of a simulated row, as exact as its error allows."""
    share = row["error_percent"] / 100
    cells = [rounded(row[name], share * row[name]) for name in ("samples_per_s", "step_ms")]
    percent = 100 * row.get("efficiency", 0.0)
    return [*cells, f"{rounded(percent, share * percent)} %" if percent else "-"]


def verdict(summary: Summary) -> str:
    """Return `ok`, `WRONG`, or `-` if there was nothing to check."""
    return {True: "ok", False: "WRONG", None: "-"}[summary.get("right")]


COLUMNS = (
    Column("samples/s", 11, _of("samples_per_s", 2)),
    Column("spread", 8, spread),
    Column("ms/step", 10, _of("step_ms", 2)),
    Column("p50", 9, _of("p50_ms", 2)),
    Column("p90", 9, _of("p90_ms", 2)),
    Column("p99", 9, _of("p99_ms", 2)),
    Column("speed-up", 10, _of("speed_up", 2)),
    Column("efficiency", 12, _of("efficiency", 0, percent=True)),
    Column("exchange ms", 13, _of("exchange_ms", 2)),
    Column("check", 7, verdict),
)
"""The columns of a peer's row."""

_NAME = 14


def heading(
    record: dict[str, Any], settings: Settings, ranks: int, left_out: Sequence[tuple[str, str]]
) -> str:
    """Return the lines before the first cell of a job."""
    job, protocol = record["jobs"][str(ranks)], settings.protocol
    lines = [
        f"# gradred train v{__version__}: {settings.framework}, {settings.device}, "
        f"{ranks_text(ranks)} on {job['hosts']} host{'s' * (job['hosts'] > 1)}",
        f"# skip {protocol.skip} steps, average {protocol.steps}, repeat {protocol.repeats} times: "
        "medians, and the spread of the throughput",
    ]
    lines += [f"# left out: {peer}: {why}" for peer, why in left_out]
    return "\n".join(lines)


def lines(row: dict[str, Any]) -> str:
    """Return the lines of one cell: its text, the titles, and a row for each peer."""
    titles = "".join(f"{column.title:>{column.width}}" for column in COLUMNS)
    found = [f"\n{cell_text(row)}", f"{'peer':{_NAME}}{titles}"]
    for peer, summary in row["summary"].items():
        cells = "".join(f"{column.cell(summary):>{column.width}}" for column in COLUMNS)
        found.append(f"{peer:{_NAME}}{cells}")
    return "\n".join(found)


def cell_text(row: dict[str, Any]) -> str:
    """Describe a cell: `resnet50 (scale 0.25), batch 8 x 2 ranks, fp32, 1,993,976 parameters`."""
    cell = row["cell"]
    reduced = f" ({row['reduced']})" if row["reduced"] else ""
    compiled = ", compiled" if cell["compiled"] else ""
    return (
        f"{cell['model']}{reduced}, batch {cell['batch']} x {ranks_text(row['ranks'])}, "
        f"{cell['precision']}{compiled}, {row['parameters']:,} parameters"
    )


def ranks_text(number: int) -> str:
    """Return `1 rank` or `2 ranks`."""
    return f"{number} rank{'s' * (number > 1)}"


def short_text(row: dict[str, Any]) -> str:
    """Describe a cell in short: `resnet50, 8 x 2, fp32`."""
    cell = row["cell"]
    compiled = ", compiled" if cell["compiled"] else ""
    return f"{cell['model']}, {cell['batch']} x {row['ranks']}, {cell['precision']}{compiled}"
