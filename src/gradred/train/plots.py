"""Plots of a run: the throughput of each peer, and scaling with what the simulator adds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from gradred._util import files

NO_MATPLOTLIB = "Plots are left out: matplotlib is not installed (pip install matplotlib)."


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def throughput(record: dict[str, Any], path: Path) -> None:
    """Draw for each cell and number of ranks the speed-up of each peer, with its spread."""
    rows = [row for row in record["rows"] if row["ranks"] > 1]
    peers = [name for name in rows[0]["summary"] if "speed_up" in rows[0]["summary"][name]]
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(max(7, 1.4 * len(rows)), 4.5), layout="constrained")
    width = 0.8 / len(peers)
    for i, peer in enumerate(peers):
        found = [row["summary"][peer]["speed_up"] for row in rows]
        middle = [one["median"] for one in found]
        below = [one["median"] - one["low"] for one in found]
        above = [one["high"] - one["median"] for one in found]
        places = [x + (i - (len(peers) - 1) / 2) * width for x in range(len(rows))]
        axes.bar(places, middle, width, yerr=(below, above), label=peer, error_kw={"lw": 0.8})
    for x, row in enumerate(rows):
        axes.plot([x - 0.45, x + 0.45], [row["ranks"]] * 2, color="grey", lw=0.8, ls="--")
    axes.set_xticks(range(len(rows)), [_label(row) for row in rows], fontsize=8)
    axes.set(ylabel="speed-up over one process", title="measured; dashed: linear speed-up")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8)
    _save(figure, path)


def scaling(record: dict[str, Any], model: str, path: Path) -> None:
    """Draw the throughput of one model over the number of ranks: measured, and simulated beyond."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    rows = [row for row in record["rows"] if row["cell"]["model"] == model]
    colours: dict[str, Any] = {}
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        for peer, summary in row["summary"].items():
            ranks = 1 if peer == "single" else row["ranks"]
            key = variant(row["cell"]), peer
            lines.setdefault(key, []).append((ranks, summary["samples_per_s"]["median"]))
    for (which, peer), points in lines.items():
        (drawn,) = axes.loglog(*zip(*sorted(points), strict=True), "o-", label=f"{peer}{which}")
        colours[which + peer] = drawn.get_color()
    _add_simulated(record, model, axes, colours)
    reduced = f" ({rows[0]['reduced']})" if rows[0]["reduced"] else ""
    axes.set(xlabel="ranks", ylabel=f"{rows[0]['unit']} per second", title=f"{model}{reduced}")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7)
    _save(figure, path)


def _add_simulated(record: dict[str, Any], model: str, axes: Any, colours: dict[str, Any]) -> None:
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in (record["simulated"] or {}).get("rows", ()):
        if row["cell"]["model"] == model:
            key = variant(row["cell"]), row["peer"]
            lines.setdefault(key, []).append((row["ranks"], row["samples_per_s"]))
    for (which, peer), points in lines.items():
        xs, ys = zip(*sorted(points), strict=True)
        label = f"{peer}{which}, simulated, {record['simulated']['net']}"
        axes.loglog(xs, ys, "x:", color=colours[which + peer], label=label)


def variant(cell: dict[str, Any]) -> str:
    """`, batch 8, bf16, compiled`."""
    compiled = ", compiled" if cell["compiled"] else ""
    return f", batch {cell['batch']}, {cell['precision']}{compiled}"


def _label(row: dict[str, Any]) -> str:
    cell = row["cell"]
    compiled = "\ncompiled" if cell["compiled"] else ""
    return f"{cell['model']}\n{row['ranks']} x {cell['batch']}, {cell['precision']}{compiled}"


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")  # no display on the machines that run benchmarks
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> None:
    with open(files.create(path), "wb") as file:
        figure.savefig(file, format="svg")
    _pyplot().close(figure)
