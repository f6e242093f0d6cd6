"""Plots of a run: the throughput of each peer, and scaling with what the simulator adds."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from typing import Any

from gradred._util import files
from gradred.cli.laboratory import INSTALL

NO_MATPLOTLIB = f"Plots are left out: matplotlib is not installed. {INSTALL}"


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
    """Draw the throughput of one model over the number of ranks: measured, and simulated beyond.

    A peer has a colour, a batch and precision a marker; what is simulated is dotted and hollow.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    rows = [row for row in record["rows"] if row["cell"]["model"] == model]
    measured: _Lines = {}
    for row in rows:
        for peer, summary in row["summary"].items():
            ranks = 1 if peer == "single" else row["ranks"]
            points = measured.setdefault((peer, variant(row["cell"])), [])
            if peer == "single":  # each job has measured it, with the threads of its own ranks
                points.clear()
            points.append((ranks, summary["samples_per_s"]["median"]))
    style = _Style(measured)
    for name, points in measured.items():
        style.draw(axes, name, points, "-", "")
    net = f", simulated, {record['simulated'].get('net')}" if record["simulated"] else ""
    beyond = _simulated(record, model)
    for name, points in beyond.items():
        style.draw(axes, name, points, ":", net)
    if beyond:
        figure.supxlabel(_error(record["simulated"]), fontsize=7)
    both = [*measured.values(), *beyond.values()]
    ranks_shown = sorted({ranks for points in both for ranks, _ in points})
    axes.set_xticks(ranks_shown, list(map(str, ranks_shown)))
    axes.minorticks_off()
    reduced = f" ({rows[0]['reduced']})" if rows[0]["reduced"] else ""
    axes.set(xlabel="ranks", ylabel=f"{rows[0]['unit']} per second", title=f"{model}{reduced}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    _save(figure, path)


_Lines = dict[tuple[str, str], list[tuple[int, float]]]
"""Ranks and throughputs, by peer and variant."""

_NOTE = 130  # characters of a line below a plot
_MARKERS = "os^Dv<>Pph"


class _Style:
    """Colours of peers and markers of variants, in the order in which they come."""

    def __init__(self, lines: _Lines) -> None:
        self._peers = list(dict.fromkeys(peer for peer, _ in lines))
        self._variants = list(dict.fromkeys(variant for _, variant in lines))

    def draw(
        self,
        axes: Any,
        name: tuple[str, str],
        points: list[tuple[int, float]],
        line: str,
        more: str,
    ) -> None:
        """Draw one line; `more` is added to its label."""
        peer, which = name
        marker = _MARKERS[self._variants.index(which) % len(_MARKERS)]
        colour = f"C{self._peers.index(peer)}"
        label = f"{peer}{which}{more}"
        xs, ys = zip(*sorted(points), strict=True)
        drawn = axes.loglog(xs, ys, f"{marker}{line}", color=colour, markersize=5, lw=1)[0]
        drawn.set(label=label, markerfacecolor="none" if more else colour)


def _simulated(record: dict[str, Any], model: str) -> _Lines:
    found: _Lines = {}
    for row in (record["simulated"] or {}).get("rows", ()):
        if row["cell"]["model"] == model:
            points = found.setdefault((row["peer"], variant(row["cell"])), [])
            points.append((row["ranks"], row["samples_per_s"]))
    return found


def _error(found: dict[str, Any]) -> str:
    here = found["error_here"]
    text = (
        "Dotted: simulated, not measured. Error on this host: median "
        f"{here['median_percent']:.1f} %, largest {here['largest_percent']:.1f} %. Error between "
        f"hosts: {found['error_between_hosts']}."
    )
    return textwrap.fill(text, _NOTE)


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
