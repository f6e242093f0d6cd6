"""The report of a study: Markdown with a table for each item, and pictures of two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradred.simulate.sweep import size_text, time_text
from gradred_lab.pictures import Bar, Curve, bars, curves
from gradred_lab.simulate import accuracy, what_if
from gradred_lab.simulate.study import ITEMS

Row = Mapping[str, Any]

PICTURES = {"phases.svg": "phases", "scaling.svg": "scaling"}
"""The picture below the table of an item."""


def markdown(record: Row) -> str:
    """The report; pictures are files beside it."""
    lines = [
        f"# Training on {record['net']}: {', '.join(record['models'])}",
        "",
        "Columns that say *simulated* are not measured. Error of simulated iterations: "
        f"{record['error_of_iterations']}. Error of simulated exchanges: "
        f"{record['error_of_exchanges']}.",
    ]
    pictures = {item: name for name, item in PICTURES.items()}
    for number, (name, title) in enumerate(ITEMS.items(), 1):
        lines += ["", f"## {number}. {title}", "", *_TABLES[name](record["items"][name])]
        if name in pictures:
            lines += ["", f"![{title}, simulated]({pictures[name]})"]
    return "\n".join(lines) + "\n"


def pictures(record: Row) -> dict[str, str]:
    """SVG documents by the names of their files."""
    return {"phases.svg": _phases_svg(record), "scaling.svg": _scaling_svg(record)}


def _table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    if not rows:
        return ["There is nothing to show."]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    return lines + [f"| {' | '.join(map(str, row))} |" for row in rows]


def _facts(item: Row) -> list[str]:
    return _table(("what", "found"), [(name, text) for name, text in item.items()])


def _networks(item: Sequence[Row]) -> list[str]:
    rows = [
        (
            row["level"],
            f"{row['latency_us']:.3g} us",
            f"{row['overhead_us']:.3g} us",
            "unlimited" if row["bytes_per_s"] is None else f"{row['bytes_per_s'] / 1e9:.3g} GB/s",
        )
        for row in item
    ]
    return _table(
        ("level", "latency (simulated)", "overhead (simulated)", "speed (simulated)"), rows
    )


def _phases(item: Sequence[Row]) -> list[str]:
    names = [name for name in what_if.PHASES if any(row[f"{name}_ms"] > 0 for row in item)]
    titles = [f"{what_if.TITLES.get(name, name)}, ms (simulated)" for name in names]
    rows = [
        (
            row["model"],
            row["scheme"],
            row["devices"],
            *(f"{row[f'{name}_ms']:.3g}" for name in names),
            f"{row['iteration_ms']:.4g}",
            row["limit"],
        )
        for row in item
    ]
    return _table(
        ("model", "scheme", "devices", *titles, "iteration, ms (simulated)", "limit"), rows
    )


def _device(item: Sequence[Row]) -> list[str]:
    rows = [
        (
            row["model"],
            row["batch"],
            row["gradients"],
            size_text(row["bytes"]),
            *(f"{row[f'{name}_ms']:.3g}" for name in ("forward", "backward", "update")),
            f"{row['samples_per_s']:.4g}",
        )
        for row in item
    ]
    is_measured = all(row["measured"] for row in item)
    mark = "" if is_measured else " (simulated)"
    phases = [f"{name}{mark}" for name in ("forward, ms", "backward, ms", "update, ms")]
    titles = ("model", "batch", "gradients", "their size", *phases, f"samples/s{mark}")
    source = "Measured: the trace" if is_measured else "By the speed of the device"
    return [*_table(titles, rows), "", f"{source} of item 1."]


def _host(item: Sequence[Row]) -> list[str]:
    return _speeds(item, "devices of one host")


def _speed(item: Sequence[Row]) -> list[str]:
    return _speeds(item, "devices")


def _speeds(item: Sequence[Row], devices: str) -> list[str]:
    rows = [
        (
            row["model"],
            row["scheme"],
            row["devices"],
            f"{row['iteration_ms']:.4g}",
            f"{row['samples_per_s']:,.0f}",
            f"{100 * row['efficiency']:.1f} %",
            row["limit"],
        )
        for row in item
    ]
    simulated = ("iteration, ms (simulated)", "samples/s (simulated)", "efficiency (simulated)")
    return _table(("model", "scheme", devices, *simulated, "limit"), rows)


def _exchange(item: Row) -> list[str]:
    rows = item["rows"]
    if not rows:
        return ["One rank exchanges nothing."]
    names = list(rows[0]["simulated_us"])
    measured = ["measured"] if "measured_us" in rows[0] else []
    titles = ["size", "best", *(f"{name} (simulated)" for name in names), *measured]
    shown = [
        (
            size_text(row["bytes"]),
            row["best"],
            *(time_text(row["simulated_us"][name]) for name in names),
            *(time_text(row["measured_us"]) for _ in measured),
        )
        for row in rows
    ]
    hosts = "host" if item["hosts"] == 1 else "hosts"
    return [f"{item['ranks']} ranks on {item['hosts']} {hosts}.", "", *_table(titles, shown)]


def _scaling(item: Sequence[Row]) -> list[str]:
    rows = [
        (
            row["model"],
            row["scheme"],
            row["hosts"],
            row["devices"],
            f"{row['speedup']:.3g}",
            f"{100 * row['of_linear']:.1f} %",
        )
        for row in item
    ]
    simulated = ("speed-up (simulated)", "of linear (simulated)")
    return _table(("model", "scheme", "hosts", "devices", *simulated), rows)


_TABLES: dict[str, Callable[[Any], list[str]]] = {
    "hardware": _facts,
    "topology": _facts,
    "software": _facts,
    "networks": _networks,
    "phases": _phases,
    "device": _device,
    "host": _host,
    "inside": _exchange,
    "across": _exchange,
    "scaling": _scaling,
    "speed": _speed,
}


def _phases_svg(record: Row) -> str:
    rows = [
        Bar(
            f"{row['model']}, {row['scheme']}",
            {what_if.TITLES.get(name, name): row[f"{name}_ms"] for name in what_if.PHASES},
            f"{row['iteration_ms']:.4g} ms",
        )
        for row in record["items"]["phases"]
    ]
    devices = record["items"]["phases"][0]["devices"]
    title = f"Simulated iterations, {devices} devices, {record['net']}"
    return bars(title, what_if.notes(record["error_of_iterations"]), rows)


def _scaling_svg(record: Row) -> str:
    """Samples per second over devices, a panel for each model and a curve for each scheme."""
    speeds: dict[str, dict[str, dict[int, float]]] = {}
    for row in record["items"]["scaling"]:
        of_model = speeds.setdefault(row["model"], {})
        of_model.setdefault(row["scheme"], {})[row["devices"]] = row["samples_per_s"]
    panels = {
        model: [Curve(scheme, points) for scheme, points in lines.items()]
        for model, lines in speeds.items()
    }
    error = record["error_of_iterations"]
    off = accuracy.stated(error) or 0.0
    about = f"{error}. Bands: that median" if off else error
    title = f"Simulated scaling, {record['net']}"
    return curves(title, "samples per second", panels, what_if.notes(about), off)
