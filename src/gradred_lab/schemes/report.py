"""The table of `gradred schemes`, and its plot: loss over time and over iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gradred import __version__
from gradred_lab.schemes.settings import Settings

SCHEMA = "gradred-schemes/1"

Row = dict[str, Any]


class _Column(NamedTuple):
    title: str
    width: int
    cell: Callable[[Row], str]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


_COLUMNS = (
    _Column("servers", 8, lambda row: str(row["server_ranks"] or "-")),
    _Column("ms/iter", 9, lambda row: _number(1e3 * row["seconds"] / row["iterations"], 2)),
    _Column("given KB", 10, lambda row: _number(row["given_bytes"] / 1e3, 1)),
    _Column("sent KB", 10, lambda row: _number(row["sent_bytes"] and row["sent_bytes"] / 1e3, 1)),
    _Column("iters to loss", 14, lambda row: _number(row["iterations_to_loss"], 0)),
    _Column("s to loss", 10, lambda row: _number(row["seconds_to_loss"], 2)),
    _Column("loss", 8, lambda row: _number(row["loss"], 4)),
    _Column("accuracy", 10, lambda row: f"{row['accuracy']:.2%}"),
)


def name(row: Row) -> str:
    """What distinguishes a row: scheme, transport, compression and all other than defaults."""
    parts = [row["scheme"], row["transport"]]
    if row["compression"] != "none":
        parts.append(row["compression"])
    if row["plan"]:
        parts.append(row["plan"])
    if row["aggregate"] != "layer":
        parts.append(row["aggregate"])
    if not row["contiguous"]:
        parts.append("scattered")
    if row["priority"]:
        parts.append("priority")
    if row["scheme"] == "ssp":
        parts.append(f"s={row['staleness']}")
    return " ".join(parts)


def heading(record: dict[str, Any], settings: Settings, width: int) -> str:
    """The lines above the rows; `width` is that of the names."""
    late = ", ".join(f"worker {who} {1e3 * s:g} ms" for who, s in settings.stragglers.items())
    lines = [
        f"# gradred schemes v{__version__}: {record['workers']} workers, {settings.model}, "
        f"{settings.data}, batch {settings.batch} each",
        f"# rate {settings.rate:g}, momentum {settings.momentum:g}, "
        f"{settings.iterations} iterations, loss {settings.loss:g}",
        "# given: by each worker in an iteration; sent: in messages of all ranks "
        "(-: inside gradred's allreduce)",
    ]
    if late or settings.jitter:
        jitter = f"each worker {1e3 * settings.jitter:g} ms at random" if settings.jitter else ""
        lines.append(f"# late in each iteration: {', '.join(filter(None, (late, jitter)))}")
    return "\n".join([*lines, titles(width)])


def titles(width: int) -> str:
    """The titles of the columns; `width` is that of the names."""
    return f"{'scheme':{width}}" + "".join(f"{one.title:>{one.width}}" for one in _COLUMNS)


def line(row: Row, width: int) -> str:
    """The line of one case; empty on ranks that have no row."""
    if not row:
        return ""
    return f"{name(row):{width}}" + "".join(f"{c.cell(row):>{c.width}}" for c in _COLUMNS)
