"""Every picture of the laboratory, drawn by matplotlib: equal figures give equal data and texts.

Texts are stored as texts, without a date and with fixed names, so that one version of matplotlib
writes the same bytes each time. `data_of` reads what a picture of bars shows, whatever drew it.
"""

from __future__ import annotations

import importlib.util
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gradred._util import files
from gradred.cli.laboratory import INSTALL
from gradred_lab import packages

NO_MATPLOTLIB = f"Plots are left out: matplotlib is not installed. {INSTALL}"

Record = dict[str, Any]

# Colours that differ in print and for most eyes (Okabe and Ito, 2008).
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#f0e442", "#999999")
_OF_LINES = (*_COLOURS[:6], "#332288", "#999999")  # without the yellow, which is pale in print
_MARKERS = "os^Dv<>Pph"
_NOTE = 130  # characters of a line below a plot
_COLUMNS = 6  # of a legend
_ROW, _CHARACTER = 0.27, 0.075  # inches of a bar's height and of a letter's width
_DPI = 120


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def require(asked: str) -> None:
    """Raise UsageError if matplotlib is missing, which `asked` needs."""
    packages.require("matplotlib", asked, "drawing needs matplotlib, which is not installed")


# ---- bars ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """A row: its label, the length of each part, and a text at its end."""

    label: str
    parts: Mapping[str, float]
    text: str


def bars(title: str, notes: Sequence[str], rows: Sequence[Bar]) -> str:
    """Draw stacked bars below each other, all to one scale, as an SVG document.

    Args:
        title: above the bars.
        notes: lines below them, such as the error of what is shown.
        rows: at least one; a part that no bar has is left out of the legend.
    """
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row.parts)
        if any(row.parts.get(name, 0.0) > 0 for row in rows)
    ]
    labels = _CHARACTER * max(len(row.label) for row in rows)
    figure = _figure(labels + 6.5, _ROW * len(rows) + 0.18 * len(notes) + 1.0)
    axes = figure.subplots()
    places = range(len(rows))
    lefts = [0.0] * len(rows)
    for name, colour in zip(names, _COLOURS * len(names), strict=False):
        lengths = [row.parts.get(name, 0.0) for row in rows]
        axes.barh(places, lengths, 0.75, lefts, color=colour, label=name)
        lefts = [left + length for left, length in zip(lefts, lengths, strict=True)]
    for place, left, row in zip(places, lefts, rows, strict=True):
        axes.annotate(
            row.text, (left, place), (4, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set(xlim=(0, 1.25 * (max(lefts) or 1.0)), ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticks(places, [row.label for row in rows], fontsize=9)
    axes.tick_params(length=0)
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=11)
    axes.legend(
        **{"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0, "borderpad": 0.2},
        **{"ncols": _COLUMNS, "frameon": False, "fontsize": 9, "handlelength": 1.0},
    )
    figure.supxlabel("\n".join(notes), x=0.01, ha="left", fontsize=8, color="#555555")
    drawn = io.StringIO()
    _save(figure, drawn, "svg", _shown(rows))
    return drawn.getvalue()


def _shown(rows: Sequence[Bar]) -> str:
    lines = [
        "; ".join([row.label, *(f"{n} {v:.4g}" for n, v in row.parts.items()), row.text])
        for row in rows
    ]
    return "\n".join(lines)


def data_of(drawn: str) -> list[str]:
    """What a picture of bars shows: the lengths in its description, and all its texts."""
    root = ElementTree.fromstring(drawn)
    (description,) = root.iterfind(".//{http://purl.org/dc/elements/1.1/}description")
    texts = root.iterfind(".//{http://www.w3.org/2000/svg}text")
    return [str(description.text), *sorted("".join(text.itertext()) for text in texts)]


# ---- training ------------------------------------------------------------------------------------


def throughput(record: Record, path: Path) -> None:
    """Draw for each cell and number of ranks the speed-up of each peer, with its spread."""
    rows = [row for row in record["rows"] if row["ranks"] > 1]
    peers = [name for name in rows[0]["summary"] if "speed_up" in rows[0]["summary"][name]]
    figure = _figure(max(7, 1.4 * len(rows)), 4.5)
    axes = figure.subplots()
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
    _write(figure, path)


def scaling(record: Record, model: str, path: Path) -> None:
    """Draw the throughput of one model over the number of ranks: measured, and simulated beyond.

    A peer has a colour, a line a marker; what is simulated is dotted and hollow, with a band of its
    error, and goes on from what was measured on one host. Grey: as one process times the ranks.
    """
    figure = _figure(9, 4.5)
    axes = figure.subplots()
    rows = [row for row in record["rows"] if row["cell"]["model"] == model]
    measured = _measured(rows)
    beyond = _simulated(record, model, measured)
    peers = list(dict.fromkeys(peer for peer, _ in measured))
    names = list(measured)
    net = f", simulated, {record['simulated'].get('net')}" if record["simulated"] else ""
    for lines, style, more in ((measured, "-", ""), (beyond, ":", net)):
        for (peer, which), points in lines.items():
            colour = _OF_LINES[peers.index(peer) % len(_OF_LINES)]
            marker = _MARKERS[names.index((peer, which)) % len(_MARKERS)]
            xs, ys, lows, highs = zip(*sorted(points), strict=True)
            drawn = axes.loglog(xs, ys, f"{marker}{style}", color=colour, markersize=5, lw=1)[0]
            drawn.set(label=f"{peer}{which}{more}", markerfacecolor="none" if more else colour)
            if more:
                axes.fill_between(xs, lows, highs, color=colour, alpha=0.12, lw=0)
    if beyond:
        figure.supxlabel(_error(record["simulated"]), fontsize=7)
    both = [*measured.values(), *beyond.values()]
    ranks_shown = sorted({point[0] for points in both for point in points})
    for which, base in _bases(measured).items():
        _linear(axes, ranks_shown, base, f"linear{which}")
    axes.set_xticks(ranks_shown, list(map(str, ranks_shown)))
    axes.minorticks_off()
    reduced = f" ({rows[0]['reduced']})" if rows[0]["reduced"] else ""
    axes.set(xlabel="ranks", ylabel=f"{rows[0]['unit']} per second", title=f"{model}{reduced}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    _write(figure, path)


_Point = tuple[int, float, float, float]
"""Ranks, throughput, and the ends of its band."""

_Lines = dict[tuple[str, str], list[_Point]]
"""By peer and variant."""


def _linear(axes: Any, counts: Sequence[int], base: tuple[int, float], label: str) -> None:
    """Draw what is as fast for each of so many as at the base."""
    ys = [base[1] * count / base[0] for count in counts]
    axes.plot(counts, ys, "--", color="#777777", lw=0.8, label=label, zorder=0)


def _bases(measured: _Lines) -> dict[str, tuple[int, float]]:
    """By variant the fewest ranks that were measured, and the throughput: of one process if so."""
    found: dict[str, tuple[int, float]] = {}
    for (_, which), points in measured.items():
        least = min(points)[:2]
        if which not in found or least[0] < found[which][0]:
            found[which] = least
    return found


def _measured(rows: Sequence[Record]) -> _Lines:
    found: _Lines = {}
    for row in rows:
        for peer, summary in row["summary"].items():
            ranks = 1 if peer == "single" else row["ranks"]
            points = found.setdefault((peer, variant(row["cell"])), [])
            if peer == "single":  # each job has measured it, with the threads of its own ranks
                points.clear()
            speed = summary["samples_per_s"]["median"]
            points.append((ranks, speed, speed, speed))
    return found


def _simulated(record: Record, model: str, measured: _Lines) -> _Lines:
    found: _Lines = {}
    for row in (record["simulated"] or {}).get("rows", ()):
        if row["cell"]["model"] == model:
            line = (row["peer"], variant(row["cell"]))
            names = ("samples_per_s", "samples_per_s_low", "samples_per_s_high")
            points = found.setdefault(line, [_at_most(measured[line], row["ranks"])])
            points.append((row["ranks"], *(row[name] for name in names)))
    return found


def _at_most(points: Sequence[_Point], ranks: int) -> _Point:
    """The measured point of the most ranks that are fewer."""
    return max(point for point in points if point[0] < ranks)


def _error(found: Record) -> str:
    here = found["error_here"]
    text = (
        "Dotted: simulated, not measured. Error on this host: median "
        f"{here['median_percent']:.1f} %, largest {here['largest_percent']:.1f} %. Error between "
        f"hosts: {found['error_between_hosts']}. Bands: the median errors of both."
    )
    return textwrap.fill(text, _NOTE)


def variant(cell: Record) -> str:
    """`, batch 8, bf16, compiled`."""
    compiled = ", compiled" if cell["compiled"] else ""
    return f", batch {cell['batch']}, {cell['precision']}{compiled}"


def _label(row: Record) -> str:
    cell = row["cell"]
    compiled = "\ncompiled" if cell["compiled"] else ""
    return f"{cell['model']}\n{row['ranks']} x {cell['batch']}, {cell['precision']}{compiled}"


# ---- curves --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A line of a plot over devices: its label, and what is read off at each number of them."""

    label: str
    points: Mapping[int, float]


def curves(
    title: str, unit: str, panels: Mapping[str, Sequence[Curve]], notes: Sequence[str], off: float
) -> str:
    """Draw a panel of curves over devices for each name, with a linear reference, as SVG.

    Args:
        title: above the panels.
        unit: of what the curves show.
        panels: curves by the name of their panel.
        notes: lines below, such as the error of what is shown.
        off: the share of a time by which bands reach to both sides; 0: no bands.
    """
    figure = _figure(1.5 + 4.2 * len(panels), 4.2 + 0.18 * len(notes))
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, lines) in zip(all_axes, panels.items(), strict=True):
        counts = sorted({count for line in lines for count in line.points})
        best = max(lines, key=lambda line: line.points[counts[0]])
        _linear(axes, counts, (counts[0], best.points[counts[0]]), "linear")
        for i, line in enumerate(lines):
            colour, marker = _OF_LINES[i % len(_OF_LINES)], _MARKERS[i % len(_MARKERS)]
            xs, ys = zip(*sorted(line.points.items()), strict=True)
            style = f"{marker}:"
            axes.plot(xs, ys, style, color=colour, ms=5, lw=1.2, mfc="none", label=line.label)
            if off:
                ends = ([y / (1 + off) for y in ys], [y / (1 - off) for y in ys])
                axes.fill_between(xs, *ends, color=colour, alpha=0.12, lw=0)
        axes.set(xscale="log", yscale="log", xlabel="devices", ylabel=unit, title=name)
        axes.set_xticks(counts, list(map(str, counts)))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    all_axes[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=11)
    figure.supxlabel("\n".join(notes), x=0.01, ha="left", fontsize=8, color="#555555")
    shown = [
        f"{name}; {line.label}; " + "; ".join(f"{n} {v:.4g}" for n, v in line.points.items())
        for name, lines in panels.items()
        for line in lines
    ]
    drawn = io.StringIO()
    _save(figure, drawn, "svg", "\n".join(shown))
    return drawn.getvalue()


# ---- schemes -------------------------------------------------------------------------------------


def losses(record: Record, names: Sequence[str], path: Path) -> None:
    """Draw the loss of each case over time and over iterations. The suffix selects the format."""
    figure = _figure(11, 5)
    axes = figure.subplots(1, 2, sharey=True)
    for row, name in zip(record["rows"], names, strict=True):
        for axis, unit in zip(axes, ("seconds", "iterations"), strict=True):
            axis.semilogy(row["curve"][unit], row["curve"]["loss"], label=name)
    for axis, unit in zip(axes, ("seconds", "iterations of all workers"), strict=True):
        axis.axhline(record["arguments"]["loss"], color="grey", linewidth=0.8)
        axis.set(xlabel=unit)
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="loss of the training rows")
    axes[1].legend()
    figure.suptitle(f"{record['workers']} workers, {record['arguments']['data']}")
    _write(figure, path)


# ---- files ---------------------------------------------------------------------------------------


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # not pyplot: no display on the machines that measure

    return Figure(figsize=(width, height), layout="constrained")


def _write(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(files.create(path), "wb") as file:
        _save(figure, file, path.suffix[1:])


def _save(figure: Any, file: Any, kind: str, description: str | None = None) -> None:
    from matplotlib import rc_context

    about = {"Date": None, "Creator": None, "Description": description} if kind == "svg" else None
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "gradred"}):
        figure.savefig(file, format=kind, dpi=_DPI, metadata=about)
