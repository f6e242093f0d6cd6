"""Plots of measurements: time over size, both logarithmic, and below them the ratio of times."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradred._util import files
from gradred._util.text import size_text
from gradred.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE = 10  # from this ratio on the lower axis is logarithmic
_DPI = 150
_MOST_TICKS = 10  # labels of sizes that fit side by side


@dataclasses.dataclass(frozen=True)
class Line:
    """The measurements of one contender: for each size the time and the spread."""

    label: str
    sizes: Sequence[int]
    times: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    ratios: Sequence[float] | None = None
    """This line's times divided by those of the first line. None: the lower axes omit the line."""
    ratios_low: Sequence[float] | None = None
    ratios_high: Sequence[float] | None = None


def require(path: str) -> None:
    """Raise UsageError unless a plot can be drawn into this file: its ending, and matplotlib."""
    if os.path.splitext(path)[1] not in (".svg", ".png", ".pdf"):
        raise UsageError(path, "its ending says no format", "End its name in .svg, .png or .pdf")
    if importlib.util.find_spec("matplotlib") is None:
        found = "drawing needs matplotlib, which is not installed"
        raise UsageError("--plot", found, "Install it with: pip install matplotlib")


@dataclasses.dataclass(frozen=True)
class Legend:
    """The texts of the plot."""

    title: str
    line: str
    """The statistic of the lines, such as `median of the rounds`."""
    band: str
    """The statistic of the bands, such as `10-90 % of the rounds`."""
    below: str
    """The label of the lower axis."""


def draw(path: Path, legend: Legend, lines: Sequence[Line]) -> None:
    """Draw the lines into a file, and make its folder. The file's suffix selects the format.

    The first line is the one that the others are compared with. `path` ends in svg, png or pdf.
    """
    import matplotlib

    matplotlib.use("Agg")  # no display on the machines that run benchmarks
    from matplotlib import pyplot

    figure, (above, under) = pyplot.subplots(
        2, sharex=True, figsize=(8, 7), height_ratios=(3, 1), layout="constrained"
    )
    for line in lines:
        (drawn,) = above.loglog(line.sizes, line.times, marker="o", markersize=3, label=line.label)
        colour = drawn.get_color()
        above.fill_between(line.sizes, line.low, line.high, alpha=0.2, color=colour, linewidth=0)
        if line.ratios is not None:
            under.plot(line.sizes, line.ratios, marker="o", markersize=3, color=colour)
        if line.ratios_low is not None and line.ratios_high is not None:
            under.fill_between(
                line.sizes, line.ratios_low, line.ratios_high, alpha=0.2, color=colour, linewidth=0
            )
    above.set(ylabel="time of a call, us", title=legend.title)
    above.legend(title=f"line: {legend.line}\nband: {legend.band}", alignment="left")
    under.axhline(1, color="grey", linewidth=0.8)
    under.set(xlabel="size", ylabel=legend.below)
    if max((max(line.ratios) for line in lines if line.ratios), default=1) > _WIDE:
        under.set_yscale("log")
    else:
        under.set_ylim(0, None)
    _mark_sizes(under, [size for line in lines for size in line.sizes])
    for axes in above, under:
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(files.create(path), "wb") as file:
        figure.savefig(file, format=path.suffix[1:], dpi=_DPI)
    pyplot.close(figure)


def _mark_sizes(axes: Axes, sizes: Sequence[int]) -> None:
    """Label the axis of sizes, which both plots share, with powers of two."""
    axes.set_xscale("log", base=2)
    marks = size_marks(min(sizes, default=1), max(sizes, default=1))
    axes.set_xticks(marks, [size_text(size) for size in marks])
    axes.minorticks_off()


def size_marks(smallest: int, largest: int) -> list[int]:
    """Return powers of two between two sizes, with a constant factor between them."""
    first, last = (smallest - 1).bit_length(), largest.bit_length() - 1
    if first > last:  # there is no power of two between them
        return [smallest]
    step = -(-(last - first + 1) // _MOST_TICKS)
    return [1 << exponent for exponent in range(first, last + 1, step)]
